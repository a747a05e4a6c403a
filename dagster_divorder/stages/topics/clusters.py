"""centroids and clusters: centroids fitted to a sample of the vectors, and every document's nearest one.

With `refit.clusters = "auto"` the centroids are fitted again if the corpus has doubled, if hardly any of its documents
are left, or if new documents lie too far from them, by more than chance. New documents are the ids in the corpus's
sketch that the fit's sketch lacks: a random sample, whatever the number of runs that added them.

Per document fragment: `labels` int32 (rows,), and `distances` float32 (rows,) to the centroid.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dagster_divorder.core.sketch import SIZE, sketch
from dagster_divorder.core.topics.cluster import DRIFT, ClusterFit, assign, fit, most_points
from dagster_divorder.pipeline.fit import Fitted, PinnedFit, has_doubled
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, PerDocument, Shown, Table
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_rows
from dagster_divorder.stages.topics.cluster_names import load_named
from dagster_divorder.stages.topics.components import chosen_vectors, load_space, space_reads
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.stages import Space
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import Fragment

MIN_NEW = 32
"""With fewer new documents in the sketch there is no test of their distance."""
SHOWN = 200
"""Clusters in the table: the first, which are the largest of the fit."""
MAX_SHARE, EVEN_TIMES, NEARLY_ALL = 0.5, 3, 0.95
"""Most documents of the largest cluster: the share MAX_SHARE; with few clusters EVEN_TIMES an even share, up to
NEARLY_ALL."""
ARRAYS = "centroids.safetensors"


def asked_clusters(run: Run) -> int:
    """The number of clusters: `clusters.k`, or for "auto" the number that k_calibration recommends."""
    return run.settings.clusters.number or int(run.receipt("k_calibration").facts["recommended"])


def _fit_centroids(run: Run) -> Mapping[str, bytes]:
    k, space = asked_clusters(run), load_space(run)
    rows = fit_rows(run, "centroids", min(most_points(k), space.most_rows(run.view)))
    fitted = fit(space.rows(run.view, rows), k, seed=run.settings.seed, centre=space.centre)
    return {ARRAYS: pack({name: np.asarray(value) for name, value in vars(fitted).items()})}


def _clusters(files: Mapping[str, bytes]) -> ClusterFit:
    arrays: dict[str, Any] = unpack(files[ARRAYS])
    return ClusterFit(**arrays | {"mean_distance": arrays["mean_distance"].item()})


def _centroids_drift(run: Run, fitted: Fitted) -> str | None:
    why = has_doubled(run, fitted)
    if why or run.planning:
        return why
    now = sketch(run.text_halves())
    covered = now <= fitted.sketch[-1] if len(fitted.sketch) == SIZE else np.ones(len(now), bool)
    new = now[covered & ~np.isin(now, fitted.sketch)]
    if len(new) < MIN_NEW:
        return None
    ids = run.index("text")
    rows = np.flatnonzero(np.isin(ids[:, 0], new) & run.are_first)
    clusters = _clusters(fitted.files)
    _, distances = assign(load_space(run).rows(run.view, rows), clusters)
    mean = float(distances.mean(dtype=np.float64))
    # A few documents may lie far out by chance, and a new fit makes all later results again.
    chance = 2 * float(distances.std(dtype=np.float64, ddof=1)) / len(distances) ** 0.5
    if mean - chance <= DRIFT * clusters.mean_distance:
        return None
    return f"new documents lie {mean:.3f} from their centroids, documents of the fit {clusters.mean_distance:.3f}"


def assign_documents(space: Space, clusters: ClusterFit, fragment: Fragment) -> dict[str, np.ndarray]:
    labels, distances = assign(space.read(fragment), clusters)
    return {"labels": labels, "distances": distances}


def cluster_sizes(run: Run) -> np.ndarray:
    """Documents of each cluster, int64 (K,)."""
    labels = run.column("clusters", "labels")
    return np.bincount(labels, minlength=run.receipt("centroids").facts["k"])


def _show_clusters(run: Run, receipt: Receipt) -> Shown:
    named, sizes = load_named(run), cluster_sizes(run)
    labels, distances = run.files("clusters").columns(run.view.fragments, "labels", "distances")
    means = np.bincount(labels, distances.astype(np.float64), len(sizes)) / np.maximum(sizes, 1)
    columns = {
        "cluster": range(min(len(sizes), SHOWN)),
        "name": named["names"],
        "documents": sizes.tolist(),
        "share": (sizes / len(labels)).tolist(),
        "mean_distance": means.tolist(),
        "example": named["examples"],
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=False)]
    return {"cluster_sizes": Table(rows)}


def _clusters_not_degenerate(run: Run) -> Finding:
    sizes, asked = cluster_sizes(run), run.receipt("centroids").facts["asked"]
    documents, k, largest = int(sizes.sum()), len(sizes), int(sizes.argmax())
    share = sizes[largest] / documents
    # The settings ask for one cluster, or there is one document.
    alone = run.settings.clusters.k == 1 or documents == 1
    limit = 1.0 if alone else min(NEARLY_ALL, max(MAX_SHARE, EVEN_TIMES / k))
    return Finding(
        passed=bool(sizes.all() and share <= limit),
        text=f"{k} clusters of {sizes.min():,} to {sizes.max():,} documents"
        f"{f' ({asked} were asked for, but many vectors are alike)' if k < asked else ''}; the largest, {largest}, "
        f"holds {share:.0%}; expected none empty and at most {limit:.0%} in one.",
        remedy="fit them again (divorder run --refit clusters), with more clusters if one holds most documents "
        '(clusters.k, or "auto"), with fewer if some are empty; boilerplate in most documents also makes one large '
        "cluster: look at the cluster map, and remove such text from the input; if all vectors are alike, the model's "
        "weights are damaged, or its tokenizer does not know the words",
    )


CENTROIDS = PinnedFit(
    name="centroids",
    version=6,
    asset=False,
    description="Centroids of the clusters.",
    reads=lambda settings: (
        "raw_docs",
        *space_reads(settings),
        *([] if settings.clusters.number else ["k_calibration"]),
        "heldout_copies",
    ),
    settings=("clusters", "seed"),
    decided_by=lambda run: {
        "space": chosen_vectors(run).key,
        "k": asked_clusters(run),
        "seed": run.settings.seed,
        **fit_inputs(run, "centroids"),
    },
    doing="fitting clusters",
    compute=_fit_centroids,
    refit="clusters",
    drift=_centroids_drift,
    tentative="new documents lie too far from the centroids",
    facts=lambda run, fitted: {
        "k": len(_clusters(fitted.files).centroids),
        "asked": asked_clusters(run),
    },
)

CLUSTERS = PerDocument(
    name="clusters",
    version=6,
    description="The cluster of every document: `clusters.k` clusters by k-means (vectors: `embedding.kind`), named by "
    "their characteristic words. Centroids and names are pinned; `fitted` says whether and why they were made again.",
    reads=lambda settings: ("raw_docs", *space_reads(settings), "centroids"),
    decided_by=lambda run: {
        "space": chosen_vectors(run).key,
        "centroids": run.receipt("centroids").version,
    },
    then=("cluster_names",),
    doing="assigning to clusters",
    compute=lambda run: partial(assign_documents, load_space(run), _clusters(run.fit("centroids"))),
    figures=lambda run, files: {
        "mean_distance": float(files.column(run.view.fragments, "distances").mean(dtype=np.float64))
    },
    figures_now=lambda run: {
        **{name: run.receipt("centroids").facts[name] for name in ("k", "asked")},
        "fitted": run.receipt("centroids").figures["fitted"],
        "vectors": chosen_vectors(run).stage,
    },
    show=_show_clusters,
    checks=(
        Check(
            name="clusters_not_degenerate",
            description="Clusters tell documents apart: none is empty, and none holds most of the corpus. Otherwise "
            "the order balances what means little.",
            check=_clusters_not_degenerate,
        ),
    ),
)
