"""k_calibration: recommends the number of clusters by silhouettes, and shows what the order gains with each number.

Each number of clusters is fitted FITS times. The first fit has the sample, seed and algorithm of `clusters`, so it is
the clustering that `clusters` makes. The others have other seeds and, if there are enough, other documents. Every
document is assigned. With the first fit the records are ordered, packed and ordered again by `balanced` over clusters
and lengths, and compared with a shuffle. Silhouettes and sizes count documents, so that copies do not raise
silhouettes; figures of the order count records.

`clusters.k = "auto"` takes the recommended number. If no number is clearly best, it takes the tried number nearest to
USUAL, a rule that noise cannot change.

Table, picture and recommendation are a pinned fit. Up to HELD_BYTES of vectors, in the order of their ids, are kept in
memory; more vectors are read twice, fragment by fragment, for all values of k together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.evidence.strategy_comparison import ComparedPair, compare_strategies
from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from dagster_divorder.core.topics.cluster import ClusterFit, fit, most_points
from dagster_divorder.core.topics.k_calibration import (
    USUAL,
    Batch,
    Clustered,
    measure,
    possible,
    recommended,
)
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.drift import has_changed
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Picture, PinnedFit, Shown, Table
from dagster_divorder.settings import Settings
from dagster_divorder.stages.evidence.strategy_comparison import row as order_row
from dagster_divorder.stages.order.sequence_order import vector_sums
from dagster_divorder.stages.topics.centroids import SAMPLE_BYTES, fit_settings, library
from dagster_divorder.stages.topics.components import chosen_space_key, load_space, space_figures, space_reads
from dagster_divorder.store.arrays import pack_rows, unpack_rows
from dagster_divorder.store.base import Store
from dagster_divorder.store.sample import rows_by_id
from dagster_divorder.store.space import Space
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import View

FITS = 3
"""Clusterings of each number, from different seeds and documents: more give a steadier recommendation and take
longer."""
HELD_BYTES = SAMPLE_BYTES
BATCH_ROWS = 1 << 16

TABLE = "table.parquet"
INFO = "k_calibration.json"
PICTURE = "picture.png"

DISTINCT = "distinct clusters a sequence"
WORST = "worst share, batch anywhere"
COMPARED = (DISTINCT, WORST)
"""Figures of the order that are compared with shuffling."""


def _calibrate_k(run: Run) -> Mapping[str, bytes]:
    seconds: dict[str, float] = {}
    rows, facts = _calibrate(run, load_space(run), seconds)
    with _timed(seconds, "picture"):
        from dagster_divorder.view.pictures import k_calibration

        picture = k_calibration(rows)
    run.observed["seconds_of"] = seconds
    return {TABLE: pack_rows(rows), INFO: orjson.dumps(facts), PICTURE: picture}


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Vectors of the used documents, sorted by id, which is a random order.

    rows: int64 (N,), the document row of each place in this order. kept: float32 (M, D), the first M vectors; all N if
    they fit into HELD_BYTES.
    """

    view: View
    space: Space
    rows: np.ndarray
    kept: np.ndarray

    def batches(self) -> Iterator[Batch]:
        """Places and vectors of all documents, from memory or fragment by fragment."""
        if len(self.kept) == len(self.rows):
            for first in range(0, len(self.rows), BATCH_ROWS):
                vectors = self.kept[first : first + BATCH_ROWS]
                yield np.arange(first, first + len(vectors)), vectors
            return
        for places, inside, arrays in self.space.files.at(self.view.documents, self.rows):
            yield places, self.space.transform(arrays["vectors"])[inside]


def load_vectors(run: Run, space: Space) -> _Vectors:
    """The vectors of a space, for the calibration."""
    rows = rows_by_id(run.store, run.view)
    kept = space.rows(run.view, rows[: space.most_rows(run.view, HELD_BYTES)])
    return _Vectors(run.view, space, rows, kept)


def _calibrate(
    run: Run, space: Space, seconds: dict[str, float]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(table, facts). Adds the time of each part to `seconds`."""
    tried = run.settings.clusters.tried
    with _timed(seconds, "reading vectors"):
        vectors = load_vectors(run, space)
    documents = len(vectors.rows)
    measured = run.settings.advanced.silhouette_documents or documents
    with _timed(seconds, "fitting"):
        fits, notes = _fit_each(run, space, vectors.kept, possible(tried, documents))
    if above := [k for k in tried if k > documents]:
        listed = ", ".join(map(str, above))
        notes.append(f"{listed} not tried: there are only {documents:,} documents")
    all_fits = [fitted for fits_of_k in fits.values() for fitted in fits_of_k]
    with (
        _timed(seconds, "assigning and silhouettes"),
        run.progress("silhouettes", 2 * documents * len(all_fits), "documents") as advance,
    ):
        clusterings = measure(all_fits, vectors.batches, documents, measured, advance)
    first = clusterings[::FITS]
    with _timed(seconds, "orders"):
        figures = _orders(run, vectors.rows, first)
    values = list(fits)
    silhouettes = np.reshape([clustered.silhouette.mean for clustered in clusterings], (len(fits), FITS))
    chosen, why = recommended(values, silhouettes)
    taken = min(values, key=lambda k: abs(k - USUAL)) if why else values[chosen]
    if why:
        notes.append(f'no clear number of clusters: {why}; clusters.k = "auto" takes {taken:,}')
    elif taken == tried[-1]:
        notes.append(f"{taken:,} is the largest number tried: larger ones may do better")
    mean, spread = silhouettes.mean(axis=1), silhouettes.std(axis=1, ddof=1)
    rows = [
        {
            "k": k,
            "silhouette": float(mean[at]),
            "spread": float(spread[at]),
            **_figures_of(first[at]),
            **figures[at],
            "recommended": not why and at == chosen,
        }
        for at, k in enumerate(values)
    ]
    return rows, {
        "recommended": None if why else taken,
        "k": taken,
        "best_silhouette": float(mean.max()),
        "notes": notes,
    }


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[part] = round(time.perf_counter() - begin, 3)


def _fit_each(
    run: Run, space: Space, vectors: np.ndarray, values: tuple[int, ...]
) -> tuple[dict[int, list[ClusterFit]], list[str]]:
    """The fits of each value of k, and notes. A value that gives no more clusters than a smaller value is left out."""
    from joblib import cpu_count
    from threadpoolctl import threadpool_limits

    how = fit_settings(run.settings)

    def fit_once(job: tuple[int, int]) -> ClusterFit:
        k, number = job
        sample = vectors[: most_points(k, how["algorithm"])]
        if number and len(sample) < len(vectors):
            size = len(sample)
            sample = vectors[np.arange(number * size, (number + 1) * size) % len(vectors)]
        return fit(sample, k, centre=space.centre, **how | {"seed": how["seed"] + number})

    jobs = [(k, number) for k in values for number in range(FITS)]
    fits: dict[int, list[ClusterFit]] = {k: [] for k in values}
    with (
        run.progress("fitting clusters", len(jobs), "fits") as advance,
        threadpool_limits(1),  # each fit has one thread, and fits run on all cores
        ThreadPoolExecutor(cpu_count()) as threads,
    ):
        for (k, _), fitted in zip(jobs, threads.map(fit_once, jobs), strict=True):
            fits[k].append(fitted)
            advance(1)
    most, notes = 0, []
    for k, (first, *_) in list(fits.items()):
        if len(first.centroids) <= most:
            notes.append(f"{k} left out: it gives no more clusters than a smaller number ({first.note})")
            del fits[k]
        most = max(most, len(first.centroids))
    return fits, notes


def _figures_of(clustered: Clustered) -> dict[str, Any]:
    sizes = np.bincount(clustered.labels, minlength=len(clustered.silhouette.sizes))
    return {
        "silhouette, as clustered": clustered.silhouette.mean,
        "clusters": len(sizes),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
    }


def _orders(run: Run, rows: np.ndarray, clusterings: list[Clustered]) -> list[dict[str, Any]]:
    """Figures of the records' order under each clustering; see `_order_figures`."""
    view = run.view
    tokens = run.column("token_counts", "lengths")[view.document_row]
    bins = run.settings.order.length_bins
    lengths = bin_codes(tokens, quantile_edges(tokens, bins))
    by_row = np.empty(view.document_rows, np.int32)
    figures = []
    each = counted(run.progress, "ordering", clusterings, len(clusterings), "values of k")
    for clustered in each:
        by_row[rows] = clustered.labels
        labels, clusters = by_row[view.document_row], len(clustered.silhouette.sizes)
        ours, shuffled = (
            _ordered(run, tokens, labels, lengths, clusters, strategy) for strategy in ("balanced", "random")
        )
        figures.append(_order_figures(ours, shuffled, clusters))
    return figures


def _ordered(
    run: Run, tokens: np.ndarray, labels: np.ndarray, lengths: np.ndarray, clusters: int, strategy: str
) -> ComparedPair:
    settings = run.settings
    (outcome,) = compare_strategies(
        tokens,
        {"cluster": labels, "length": lengths},
        {"cluster": clusters, "length": settings.order.length_bins},
        documents=[strategy],
        sequences=[strategy],
        sequence_length=settings.sequence.length,
        batch=settings.sequence.batch,
        seed=settings.seed,
        vectors=partial(vector_sums, run, view=run.view) if settings.sequence.vectors else None,
    )
    return outcome


def _order_figures(ours: ComparedPair, shuffled: ComparedPair, clusters: int) -> dict[str, Any]:
    """Distinct clusters a sequence, also as a share of all clusters; and the worst deviation of a cluster's share in a
    batch. Both also for shuffling. None if the corpus is smaller than a batch."""
    our, their = order_row(ours), order_row(shuffled)
    figures: dict[str, Any] = {}
    for name in COMPARED:
        figures[name] = our[name]
        if name == DISTINCT:
            figures["share of the clusters"] = our[name] / clusters
        figures[f"{name}, shuffled"] = their[name]
        figures[f"{name}, times shuffled"] = our[name] / their[name] if our[name] and their[name] else None
    return figures


def load_table(store: Store, folder: str) -> list[dict[str, Any]]:
    """The table, a row a value of k. folder: of the fit, from the receipt."""
    return unpack_rows(store.read(f"{folder}/{TABLE}"))


def _k_calibration_settings(settings: Settings) -> dict[str, Any]:
    return {
        "values": settings.clusters.tried,
        "fits": FITS,
        "sample": settings.advanced.silhouette_documents,
        "clusters": fit_settings(settings),
        "sequence": [settings.sequence.length, settings.sequence.batch, settings.sequence.vectors],
        "length_bins": settings.order.length_bins,
    }


def _k_calibration_figures(run: Run, receipt: Receipt) -> dict[str, Any]:
    facts = receipt.facts
    return {
        "recommended": facts["recommended"] or "no clear number",
        "auto_takes": facts["k"],
        **{name: facts[name] for name in ("best_silhouette", "notes")},
        "measured_documents": facts["documents"],
        **space_figures(run),
    }


def _show_k_calibration(run: Run, receipt: Receipt) -> Shown:
    fit = receipt.files["fit"]
    return {
        "calibration": Table(load_table(run.store, fit)),
        "picture": Picture(run.store.local(f"{fit}/{PICTURE}"), "silhouettes"),
    }


K_CALIBRATION = PinnedFit(
    name="k_calibration",
    version=6,
    kinds=lambda settings: {library(settings)},
    description="How many clusters to make. Several numbers are compared by silhouettes over several fits, sizes, and "
    'what the order gains. `clusters.k = "auto"` takes the clearly best number, or else 30. Measured again once enough '
    "documents have changed; `fitted` says why.",
    evidence="how many clusters the corpus has",
    reads=lambda settings: ("raw_docs", "token_counts", *space_reads(settings)),
    settings=_k_calibration_settings,
    inputs=lambda run: {"space": chosen_space_key(run), "tokens": run.receipt("token_counts").key},
    doing="calibrating the number of clusters",
    compute=_calibrate_k,
    refit="k_calibration",
    drift=has_changed,
    kept_by_outcome=True,
    facts=lambda run, fitted: orjson.loads(fitted.files[INFO]),
    figures=_k_calibration_figures,
    show=_show_k_calibration,
)
