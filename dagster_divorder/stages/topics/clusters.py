"""clusters: assigns every document to the nearest of the pinned centroids.

Per document fragment: `labels` int32 (rows,), and `distances` float32 (rows,) to the centroid.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dagster_divorder.core.topics.cluster import ClusterFit, assign
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, PerDocument, Shown, Table
from dagster_divorder.stages.topics.centroids import load_clusters
from dagster_divorder.stages.topics.cluster_names import load_named
from dagster_divorder.stages.topics.components import (
    chosen_vectors,
    load_space,
    space_figures,
    space_key,
    space_reads,
)
from dagster_divorder.store.space import Space
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import Fragment

SHOWN = 200
"""Clusters in the table: the first, which are the largest of the fit."""
MAX_SHARE_WITHOUT_VECTOR = 0.01
MAX_SHARE, EVEN_TIMES, NEARLY_ALL = 0.5, 3, 0.95
"""Most documents of the largest cluster: the share MAX_SHARE; with few clusters EVEN_TIMES an even share, up to
NEARLY_ALL."""


def assign_documents(space: Space, clusters: ClusterFit, fragment: Fragment) -> dict[str, np.ndarray]:
    labels, distances = assign(space.read(fragment), clusters)
    return {"labels": labels, "distances": distances}


def _clusters_figures(run: Run, files: StageFiles) -> dict[str, Any]:
    labels, distances = files.columns(run.view.fragments, "labels", "distances")
    sizes = np.bincount(labels, minlength=run.receipt("centroids").facts["k"])
    return {"mean_distance": float(distances.mean(dtype=np.float64)), "cluster_sizes": sizes.tolist()}


def _clusters_figures_now(run: Run) -> dict[str, Any]:
    centroids, documents = run.receipt("centroids"), run.corpus.records
    fit, hint = centroids.facts, None
    if fit["dims"] > documents and not run.settings.embedding.pca:
        # With more dims than documents, all vectors are about equally far from each other.
        few = max(1, min(50, documents // 2))
        hint = f"{fit['dims']:,} dims for {documents:,} documents; embedding.pca = {few} may give clearer clusters"
    return {
        "k": fit["k"],
        "fitted": centroids.figures["fitted"],
        "fit_documents": fit["documents"],
        "fit_mean_distance": fit["mean_distance"],
        "note": fit["note"],
        **space_figures(run),
        "hint": hint,
    }


def cluster_sizes(run: Run) -> np.ndarray:
    """Documents of each cluster, int64 (K,)."""
    labels = run.column("clusters", "labels")
    return np.bincount(labels, minlength=run.receipt("centroids").facts["k"])


def _show_clusters(run: Run, receipt: Receipt) -> Shown:
    named, sizes = load_named(run), cluster_sizes(run)
    labels, distances = run.files("clusters").columns(run.view.fragments, "labels", "distances")
    means = np.bincount(labels, distances.astype(np.float64), len(sizes)) / np.maximum(sizes, 1)
    rows = [
        {
            "cluster": label,
            "name": named["names"][label],
            "documents": int(sizes[label]),
            "share": float(sizes[label] / len(labels)),
            "mean_distance": float(means[label]),
            "example": next(iter(named["examples"][label]), ""),
        }
        for label in range(min(len(sizes), SHOWN))
    ]
    return {"cluster_sizes": Table(rows)}


def _documents_have_vectors(run: Run) -> Finding:
    """Few of the clustered vectors are zero, since a document has no token or its vector is not finite."""
    from dagster_divorder.models.embed import NOT_FINITE

    view, stage = run.view, chosen_vectors(run).stage
    zero = not_finite = 0
    for _, arrays in run.files(stage).each(view.fragments):
        flagged = np.broadcast_to(arrays.get("flagged", 0) == NOT_FINITE, len(arrays["vectors"]))
        not_finite += int(flagged.sum())
        zero += int((~flagged & ~arrays["vectors"].any(axis=1)).sum())
    documents = len(view)
    share = (zero + not_finite) / documents
    return Finding(
        passed=share <= MAX_SHARE_WITHOUT_VECTOR,
        text=f"Of {documents:,} documents, {zero:,} have a zero vector and {not_finite:,} had one that is not finite: "
        f"{share:.2%}; expected at most {MAX_SHARE_WITHOUT_VECTOR:.0%}.",
        remedy=f"check the input and model of {stage}: documents without tokens have zero vectors; damaged weights or "
        "a checkpoint in too narrow a number type give vectors that are not finite",
        figures={"zero": zero, "not_finite": not_finite, "share": share},
    )


def _clusters_not_degenerate(run: Run) -> Finding:
    sizes: list[int] = cluster_sizes(run).tolist()
    documents, k = sum(sizes), len(sizes)
    largest, share, empty = int(np.argmax(sizes)), max(sizes) / documents, sizes.count(0)
    # The settings ask for one cluster, or there is one document.
    alone = run.settings.clusters.k == 1 or documents == 1
    limit = 1.0 if alone else min(NEARLY_ALL, max(MAX_SHARE, EVEN_TIMES / k))
    faults = []
    if empty:
        faults.append(f"{empty} of {k} clusters are empty (the first: {sizes.index(0)})")
    if share > limit:
        faults.append(f"cluster {largest} holds {share:.0%} of the documents, more than {limit:.0%}")
        # The note may say why there are fewer clusters than asked for.
        faults += filter(None, [run.receipt("centroids").facts["note"]])
    return Finding(
        passed=not faults,
        text=f"{'; '.join(faults)}."
        if faults
        else f"{k} clusters of {min(sizes):,} to {max(sizes):,} documents; the largest holds {share:.0%}.",
        remedy="fit them again (divorder run --refit clusters), with more clusters if one holds most documents "
        '(clusters.k, or "auto"), with fewer if some are empty; boilerplate in most documents also makes one large '
        "cluster: look at the cluster map, and remove such text from the input; if all vectors are alike, the model's "
        "weights are damaged, or its tokenizer does not know the words",
        figures={"k": k, "empty": empty, "largest": sizes[largest], "largest_share": share},
    )


CLUSTERS = PerDocument(
    name="clusters",
    version=6,
    description="The cluster of every document: `clusters.k` clusters by k-means (vectors: `embedding.kind`), named by "
    "their characteristic words. Centroids and names are pinned; `fitted` says whether and why they were made again.",
    reads=lambda settings: ("raw_docs", *space_reads(settings), "centroids"),
    decided_by=lambda run: {"space": space_key(run), "centroids": run.receipt("centroids").version},
    then=("cluster_names",),
    doing="assigning to clusters",
    compute=lambda run: partial(assign_documents, load_space(run).listed(), load_clusters(run)),
    figures=_clusters_figures,
    figures_now=_clusters_figures_now,
    show=_show_clusters,
    checks=(
        Check(
            name="documents_have_vectors",
            description="Nearly every document has a vector, which decides its cluster. A document without one "
            "lands in any cluster.",
            check=_documents_have_vectors,
        ),
        Check(
            name="clusters_not_degenerate",
            description="Clusters tell documents apart: none is empty, and none holds most of the corpus. Otherwise "
            "the order balances what means little.",
            check=_clusters_not_degenerate,
        ),
    ),
)
