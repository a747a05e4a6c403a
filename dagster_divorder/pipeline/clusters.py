"""clusters: a topic for every document. Centroids are a pinned fit; new documents are assigned to them.

Per document fragment: `labels` int32 (rows,), `distances` float32 (rows,), the distance to the centroid, and
`since` uint64 (rows,), the corpus that the row was new in. The fit is made again on request, or (`clusters.refit =
"auto"`) when the corpus has doubled since, hardly any of its documents are left, new ones lie too far from the
centroids, or (`clusters.k = "auto"`) another number of clusters is recommended; then every document is assigned again.
Which documents are new is read from `since`, not from what this run has computed: a run that was killed half-way and
one that was not come to the same decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.cluster import (
    POINTS_PER_CENTROID,
    ClusterFit,
    assign,
    fit,
    most_points,
    needs_refit,
)
from dagster_divorder.pipeline.cluster_names import name_clusters, names_in, unpin_names
from dagster_divorder.pipeline.cluster_table import cluster_table
from dagster_divorder.pipeline.fragments import Delta, fill
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.refresh import corpus_sketch, reason_of_another_corpus, sketch_file
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sample import document_index, rows_by_id
from dagster_divorder.pipeline.space import Space, chosen_kind, load_space
from dagster_divorder.settings import Settings
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.fits import Fit, drop_unpinned, pin, pinned, read_fit
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View

SAMPLE_BYTES = 1 << 30

ARRAYS = "centroids.safetensors"
INFO = "clusters.json"


@dataclass(frozen=True, slots=True)
class Pinned:
    """A pinned clustering: centroids, how many were asked for, and the corpus they were fitted to, its version and
    number of documents."""

    fit: Fit
    clusters: ClusterFit
    k: int
    documents: int
    corpus: str


def run(run: Run) -> Receipt:
    raw_docs, view = run.receipt("raw_docs"), load_view(run)
    refit = run.settings.clusters.refit
    space = load_space(run, chosen_kind(run), refit=refit == "now")
    used = view.used_documents()
    documents = int(used.sum())
    current = load_pinned(run, space.key)
    reason = "first run with these settings and vectors" if current is None else None
    if refit == "now":
        reason = "asked for by clusters.refit"
    elif current is not None and refit == "auto":
        reason = reason_of_another_corpus(run, view, current.fit, "clusters")
        if cluster_count(run) != current.k:
            reason = f"k_calibration recommends {cluster_count(run)} clusters now, not {current.k}"
    if current is not None and reason is None:
        files, delta = _assign(run, view, space, current)
        if refit == "auto" and current.corpus != raw_docs.version:
            reason = needs_refit(
                current.documents,
                documents,
                current.clusters.mean_distance,
                _mean_distance_of_new(files, view, raw_docs.version),
            )
    replaced = None
    if reason:
        replaced, current = current, _pin(run, view, space, documents, reason)
        files, delta = _assign(run, view, space, current)
    assert current is not None
    if replaced and replaced.fit.hash != current.fit.hash:
        _remove_replaced(run.store, replaced.fit, clusters_key(run.settings, space.key, replaced))
    labels, distances = files.columns(view.documents, "labels", "distances")
    k = len(current.clusters.centroids)
    sizes = np.bincount(labels[used], minlength=k)
    names = name_clusters(run.store, view, current.fit, labels, k)
    version = content_hash(files.key, raw_docs.version)
    of_used = np.where(used, labels, np.int32(-1))
    table = cluster_table(run, view, version, names_in(run.store, names.folder), of_used, distances)
    return Receipt(
        stage="clusters",
        recipe=run.settings.recipe("clusters"),
        key=files.key,
        version=version,
        uses={
            "raw_docs": raw_docs.version,
            space.stage: space.version,
            **{stage: run.receipt(stage).version for stage in _measures(run.settings)},
        },
        files={"fit": current.fit.folder, "names": names.folder, "table": table, **space.fits()},
        report={
            **delta.report(),
            "k": k,
            "fitted": reason or f"no: pinned ({current.fit.reason})",
            "fit_documents": current.documents,
            "fit_mean_distance": current.clusters.mean_distance,
            "mean_distance": float(distances[used].mean(dtype=np.float64)),
            "note": _note(current),
            **space.report(),
            "hint": None if space.components else _hint(current.clusters.centroids.shape[1], documents),
            "cluster_sizes": sizes.tolist(),
        },
    )


def _assign(run: Run, view: View, space: Space, current: Pinned) -> tuple[StageFiles, Delta]:
    key = clusters_key(run.settings, space.key, current)
    files = StageFiles(run.store, "clusters", key)
    vector_file = space.files.present()
    corpus = _corpus_number(run.receipt("raw_docs").version)

    def compute(fragment: Fragment) -> dict[str, np.ndarray]:
        stored = unpack(run.store.unseal(vector_file[fragment.name]))["vectors"]
        labels, distances = assign(space.see(stored), current.clusters)
        since = np.full(len(labels), corpus, dtype=np.uint64)
        return {"labels": labels, "distances": distances, "since": since}

    return files, fill(run, files, view, compute, "assigning to clusters")


def _remove_replaced(store: LocalStore, fit: Fit, key: str) -> None:
    """Remove what was made with a fit that another one has replaced: nothing leads to it any more, and small appends
    may replace one every few days."""
    for name in StageFiles(store, "clusters", key).present().values():
        store.delete(name)
    # Under other settings the same clusters may have been found.
    if drop_unpinned(store, fit):
        unpin_names(store, fit)


def _measures(settings: Settings) -> tuple[str, ...]:
    """The stages whose findings say what is clustered, and how finely."""
    vectors = ("ari_comparison",) if settings.embedding.kind == "auto" else ()
    return (*vectors, "k_calibration") if settings.clusters.k == "auto" else vectors


def _note(current: Pinned) -> str:
    """What the fit could not do with the documents that there were, or ""."""
    points = int(current.clusters.sizes.sum())
    notes = [current.clusters.note]
    if current.k > current.documents:
        notes.append(f"{current.k:,} clusters are asked for, and there were {current.documents:,} documents")
    elif points < POINTS_PER_CENTROID * current.k:
        notes.append(
            f"fitted to {points:,} documents, {points / current.k:.3g} a cluster; below {POINTS_PER_CENTROID} another "
            "sample gives other centroids, the more so the fewer they are"
        )
    return "; ".join(filter(None, notes))


def _hint(dims: int, documents: int) -> str | None:
    """What to do about vectors of more dims than there are documents, which lie at much the same distance from each
    other."""
    if dims <= documents:
        return None
    few = max(1, min(50, documents // 2))
    return f"{dims:,} dims for {documents:,} documents; embedding.pca = {few} may give clearer clusters"


def _mean_distance_of_new(files: StageFiles, view: View, corpus: str) -> float | None:
    """Mean distance over the documents that are new in this corpus; None where there are none."""
    distances, since = files.columns(view.documents, "distances", "since")
    new = view.used_documents() & (since == _corpus_number(corpus))
    return float(distances[new].mean(dtype=np.float64)) if new.any() else None


def _corpus_number(version: str) -> np.uint64:
    """The first 64 bits of a version of raw_docs."""
    return np.uint64(int(version[:16], 16))


def _pin(run: Run, view: View, space: Space, documents: int, reason: str) -> Pinned:
    settings = run.settings
    k = cluster_count(run)
    run.progress.note(f"fitting {k} clusters ({reason})")
    ids, _ = document_index(run.store, view)
    rows = rows_by_id(ids, view)
    width = next(space.each(view.documents[:1]))[1].shape[1]
    rows = rows[: min(most_points(k, settings.clusters.algorithm), max(1, SAMPLE_BYTES // (4 * width)))]
    clusters = fit(
        space.rows(view, rows),
        k,
        algorithm=settings.clusters.algorithm,
        metric=settings.clusters.metric,
        seed=settings.seed,
        centre=space.centre,
        overwrite=True,
    )
    info: dict[str, Any] = {
        "k": k,
        "documents": documents,
        "corpus": run.receipt("raw_docs").version,
        "mean_distance": clusters.mean_distance,
        "iterations": clusters.iterations,
        "objective": clusters.objective,
        "metric": clusters.metric,
        "note": clusters.note,
    }
    arrays: dict[str, np.ndarray] = {
        "centre": clusters.centre,
        "centroids": clusters.centroids,
        "sizes": clusters.sizes,
    }
    files = {ARRAYS: pack(arrays), INFO: orjson.dumps(info), **sketch_file(corpus_sketch(run, view))}
    pinned_fit = pin(run.store, "clusters", _fit_recipe(settings, space.key), files, reason)
    return Pinned(pinned_fit, clusters, k, documents, info["corpus"])


def cluster_count(run: Run) -> int:
    """The number of clusters: `clusters.k`, or what k_calibration recommends."""
    k = run.settings.clusters.k
    return int(run.receipt("k_calibration").report["recommended"]) if k == "auto" else k


def clusters_key(settings: Settings, vectors_key: str, current: Pinned) -> str:
    """Stage key of clusters."""
    return content_hash(settings.recipe("clusters"), vectors_key, current.fit.hash)


def _fit_recipe(settings: Settings, vectors_key: str) -> str:
    return f"{settings.recipe('clusters')}-{vectors_key}"


def load_pinned(run: Run, vectors_key: str) -> Pinned | None:
    """The pinned clustering of the vectors under a key, None if there is none yet."""
    refit = run.settings.clusters.refit == "now"
    found = pinned(run.store, "clusters", _fit_recipe(run.settings, vectors_key), refit=refit)
    if found is None:
        return None
    files = read_fit(run.store, found)
    info = orjson.loads(files[INFO])
    of_corpus = {name: info.pop(name) for name in ("k", "documents", "corpus")}
    values: dict[str, Any] = {**unpack(files[ARRAYS]), **info}
    return Pinned(found, ClusterFit(**values), **of_corpus)


def cluster_files(run: Run) -> StageFiles:
    """Labels and distances by document fragment."""
    return StageFiles(run.store, "clusters", run.receipt("clusters").key)
