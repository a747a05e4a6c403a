"""k_calibration: how many clusters, by their silhouettes, with what the order gains beside them.

Each number of clusters is fitted FITS times: first as `clusters` would (same sample, seed and
algorithm, so it is the clustering that comes out), then from other seeds and, where there are enough, other documents.
Every document is assigned. By the first fit the records are ordered, packed and ordered again by `balanced` over
clusters and lengths, beside a shuffle. Silhouettes and sizes are those of documents, so that copies do not count as
likeness; the order's figures those of records, as the order is.

`clusters.k = "auto"` takes the recommended number. Where none is clear it takes USUAL, or the number tried that is
nearest to it: a rule that noise cannot move.

The outcome is a pinned fit: table, picture and recommendation. Vectors are held in memory up to HELD_BYTES, in the
order of their ids; beyond that they are read twice, fragment by fragment, for all values of k together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
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
from dagster_divorder.store.view import View, offsets

FITS = 3
"""Clusterings of each number, from other seeds and documents: a steadier recommendation at more time as it rises."""
HELD_BYTES = SAMPLE_BYTES
BATCH_ROWS = 1 << 16

TABLE = "table.parquet"
INFO = "k_calibration.json"
PICTURE = "picture.png"

DISTINCT = "distinct clusters a sequence"
WORST = "worst share, batch anywhere"
COMPARED = (DISTINCT, WORST)
"""Figures of the order that stand beside shuffling's."""


def _calibrate_k(run: Run) -> Mapping[str, bytes]:
    seconds: dict[str, float] = {}
    rows, facts = _calibrate(run, run.view, load_space(run), seconds)
    with _timed(seconds, "picture"):
        from dagster_divorder.view.pictures import k_calibration

        picture = k_calibration(rows)
    run.observed["seconds_of"] = seconds
    return {TABLE: pack_rows(rows), INFO: orjson.dumps(facts), PICTURE: picture}


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Vectors of the used documents, by place: their number by rising id, which is a random order.

    rows: int64 (N,), the document row of each place. held: float32 (M, D), the first M of them, all if they fit into
    HELD_BYTES.
    """

    view: View
    space: Space
    rows: np.ndarray
    held: np.ndarray

    def batches(self) -> Iterator[Batch]:
        """Places and vectors of all: as held, else fragment by fragment."""
        if len(self.held) == len(self.rows):
            for first in range(0, len(self.rows), BATCH_ROWS):
                some = self.held[first : first + BATCH_ROWS]
                yield np.arange(first, first + len(some)), some
            return
        place = np.full(self.view.document_rows, -1)
        place[self.rows] = np.arange(len(self.rows))
        start = offsets(self.view.documents)
        for at, (_, vectors) in enumerate(self.space.each(self.view.documents)):
            places = place[start[at] : start[at + 1]]
            used = places >= 0
            yield places[used], vectors[used]


def _load(run: Run, view: View, space: Space) -> _Vectors:
    rows = rows_by_id(run.store, view)
    return _Vectors(view, space, rows, space.rows(view, rows[: max(1, HELD_BYTES // (4 * space.dims(view)))]))


def _calibrate(
    run: Run, view: View, space: Space, seconds: dict[str, float]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Table and facts; `seconds` is told what each part took."""
    tried = run.settings.clusters.tried
    with _timed(seconds, "reading vectors"):
        vectors = _load(run, view, space)
    documents = len(vectors.rows)
    measured = run.settings.advanced.silhouette_documents or documents
    with _timed(seconds, "fitting"):
        fits, notes = _fit_each(run, space, vectors.held, possible(tried, documents))
    if above := [k for k in tried if k > documents]:
        listed = ", ".join(map(str, above))
        notes.append(f"{listed} not tried: more than the documents there are ({documents:,})")
    of_all = [one for of in fits.values() for one in of]
    with (
        _timed(seconds, "assigning and silhouettes"),
        run.progress("silhouettes", 2 * documents * len(of_all), "documents") as advance,
    ):
        clustered = measure(of_all, vectors.batches, documents, measured, advance)
    first = clustered[::FITS]
    with _timed(seconds, "orders"):
        figures = _orders(run, view, vectors.rows, first)
    values, silhouettes = list(fits), np.array([of.silhouette.mean for of in clustered])
    silhouettes = silhouettes.reshape(len(fits), FITS)
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
    run: Run, space: Space, held: np.ndarray, values: tuple[int, ...]
) -> tuple[dict[int, list[ClusterFit]], list[str]]:
    """The fits of each value of k, and which values were left out as they gave no more clusters than one before."""
    from joblib import cpu_count
    from threadpoolctl import threadpool_limits

    how, count = fit_settings(run.settings), FITS

    def one(job: tuple[int, int]) -> ClusterFit:
        k, number = job
        sample = held[: most_points(k, how.algorithm)]
        if number and len(sample) < len(held):
            size = len(sample)
            sample = held[np.arange(number * size, (number + 1) * size) % len(held)]
        return fit(sample, k, centre=space.centre, **asdict(replace(how, seed=how.seed + number)))

    jobs = [(k, number) for k in values for number in range(count)]
    made: dict[int, list[ClusterFit]] = {k: [] for k in values}
    with (
        run.progress("fitting clusters", len(jobs), "fits") as advance,
        threadpool_limits(1),  # a fit has one thread, and there is one for each core
        ThreadPoolExecutor(cpu_count()) as threads,
    ):
        for (k, _), found in zip(jobs, threads.map(one, jobs), strict=True):
            made[k].append(found)
            advance(1)
    fits: dict[int, list[ClusterFit]] = {}
    notes: list[str] = []
    for k, of in made.items():
        if fits and len(of[0].centroids) <= max(len(others[0].centroids) for others in fits.values()):
            notes.append(f"{k} left out: it gives no more clusters than a smaller number ({of[0].note})")
        else:
            fits[k] = of
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


def _orders(run: Run, view: View, rows: np.ndarray, clustered: list[Clustered]) -> list[dict[str, Any]]:
    """What each clustering does for the order of the records; see `_order_figures`."""
    tokens = run.column("token_counts", "lengths")[view.document_row]
    bins = run.settings.order.length_bins
    lengths = bin_codes(tokens, quantile_edges(tokens, bins))
    by_row = np.empty(view.document_rows, np.int32)
    figures = []
    with run.progress("ordering", len(clustered), "values of k") as advance:
        for of in clustered:
            by_row[rows] = of.labels
            labels = by_row[view.document_row]
            ours, shuffled = (
                _ordered(run, tokens, labels, lengths, len(of.silhouette.sizes), strategy)
                for strategy in ("balanced", "random")
            )
            figures.append(_order_figures(ours, shuffled, len(of.silhouette.sizes)))
            advance(1)
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
    """Distinct clusters a sequence, also as a share of all; the worst deviation of a cluster's share in a batch; either
    beside shuffling's. None where a corpus smaller than a batch can tell nothing."""
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
    """The table, a row a value of k; `folder` is the fit's in the receipt."""
    return unpack_rows(store.read(f"{folder}/{TABLE}"))


def _k_calibration_settings(settings: Settings) -> dict[str, Any]:
    return {
        "values": settings.clusters.tried,
        "fits": FITS,
        "sample": settings.advanced.silhouette_documents,
        "clusters": asdict(fit_settings(settings)),
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
    description="How many clusters: silhouettes over several fits, sizes and what the order gains for several numbers, "
    'and the one to take, where one is clear (`clusters.k = "auto"` takes it, or else 30). Measured again once enough '
    "documents have changed; `fitted` says why.",
    reads=lambda settings: ("raw_docs", "token_counts", *space_reads(settings)),
    settings=_k_calibration_settings,
    inputs=lambda run: {"space": chosen_space_key(run), "tokens": run.receipt("token_counts").key},
    doing="calibrating the number of clusters",
    compute=_calibrate_k,
    refit="k_calibration",
    drift=has_changed,
    # The limit may have been lowered.
    checked_once_per_corpus=False,
    kept_by_outcome=True,
    facts=lambda run, fitted: {
        **orjson.loads(fitted.files[INFO]),
        "documents": fitted.documents,
    },
    figures=_k_calibration_figures,
    show=_show_k_calibration,
)
