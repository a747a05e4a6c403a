"""k_calibration: how many clusters, by their silhouettes, with what the order gains beside them.

Each of `k_calibration.values` is fitted as `clusters` would fit it (same sample, seed and algorithm, so the clustering
that is measured is the one that comes out), every document is assigned, and the records are ordered, packed and
ordered again by `balanced` over clusters and lengths, beside a shuffle. Silhouettes and sizes are those of documents,
so that copies do not count as likeness; the order's figures those of records, as the order is.

The outcome is a pinned fit (pipeline/refresh.py): table, recommendation, and a sketch of the documents. Its picture is
drawn from the table. Vectors are held in memory up to HELD_BYTES, in the order of their ids; beyond that they are read
twice, fragment by fragment, for all values of k together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.cluster import ClusterFit, fit, most_points
from dagster_divorder.core.k_calibration import (
    NEAR_ZERO,
    Batch,
    Clustered,
    measure,
    possible,
    recommended,
)
from dagster_divorder.core.strategy_comparison import Outcome, compare_strategies
from dagster_divorder.core.traits import bin_codes, quantile_edges
from dagster_divorder.pipeline.clusters import SAMPLE_BYTES
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.refresh import corpus_sketch, reason_to_measure, sketch_file
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.sample import document_index, rows_by_id
from dagster_divorder.pipeline.sequence_coordinates import vector_sums
from dagster_divorder.pipeline.space import Space, chosen_space
from dagster_divorder.pipeline.strategy_comparison import row as order_row
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.store.arrays import pack_rows, unpack_rows
from dagster_divorder.store.fits import Fit, pin, pinned, read_fit
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.view import View, offsets

HELD_BYTES = SAMPLE_BYTES
BATCH_ROWS = 1 << 16

TABLE = "table.parquet"
INFO = "k_calibration.json"

DISTINCT = "distinct clusters a sequence"
WORST = "worst share, batch anywhere"
COMPARED = (DISTINCT, WORST)
"""Figures of the order that stand beside shuffling's."""


def run(run: Run) -> Receipt:
    view, space = load_view(run), chosen_space(run)
    recipe = f"{run.settings.recipe('k_calibration')}-{space.key}"
    found = pinned(run.store, "k_calibration", recipe)
    documents = corpus_sketch(run, view)
    count = int(view.used_documents().sum())
    reason = reason_to_measure(run, found, documents, run.settings.k_calibration.refresh)
    seconds: dict[str, float] = {}
    if reason:
        run.progress.note(f"calibrating the number of clusters ({reason})")
        rows, notes = _calibrate(run, view, space, seconds)
        info = {
            "recommended": next(row["k"] for row in rows if row["recommended"]),
            "best_silhouette": max(row["silhouette"] for row in rows),
            "documents": count,
            "notes": notes,
        }
        files = {TABLE: pack_rows(rows), INFO: orjson.dumps(info), **sketch_file(documents)}
        found = pin(run.store, "k_calibration", recipe, files, reason)
    assert found is not None
    with _timed(seconds, "picture"):
        picture = _picture(run, found)
    info = orjson.loads(read_fit(run.store, found)[INFO])
    uses = ["raw_docs", "token_counts", space.stage]
    if run.settings.embedding.kind == "auto":
        uses.append("ari_comparison")
    return Receipt(
        stage="k_calibration",
        recipe=run.settings.recipe("k_calibration"),
        key=found.hash,
        version=found.hash,
        uses={stage: run.receipt(stage).version for stage in uses},
        files={"fit": found.folder, "picture": picture, **space.fits()},
        report={
            "documents": count,
            "new_documents": count if reason else 0,
            "reused_documents": 0 if reason else count,
            "recommended": info["recommended"],
            "best_silhouette": info["best_silhouette"],
            "measured": reason or f"no: kept ({found.reason})",
            "measured_documents": info["documents"],
            "notes": info["notes"],
            **space.report(),
            "seconds_of": seconds if reason else {},
        },
    )


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
    ids, _ = document_index(run.store, view)
    rows = rows_by_id(ids, view)
    width = next(space.each(view.documents[:1]))[1].shape[1]
    return _Vectors(view, space, rows, space.rows(view, rows[: max(1, HELD_BYTES // (4 * width))]))


def _calibrate(
    run: Run, view: View, space: Space, seconds: dict[str, float]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Table and notes; `seconds` is told what each part took."""
    settings = run.settings.k_calibration
    with _timed(seconds, "reading vectors"):
        vectors = _load(run, view, space)
    documents = len(vectors.rows)
    with _timed(seconds, "fitting"):
        fits, notes = _fit_each(run, space, vectors.held, possible(settings.values, documents))
    if above := [k for k in settings.values if k > documents]:
        listed = ", ".join(map(str, above))
        notes.append(f"{listed} not tried: more than the documents there are ({documents:,})")
    with (
        _timed(seconds, "assigning and silhouettes"),
        run.progress("silhouettes", 2 * documents * len(fits), "documents") as advance,
    ):
        sample = settings.sample or documents
        clustered = measure(list(fits.values()), vectors.batches, documents, sample, advance)
    with _timed(seconds, "orders"):
        figures = _orders(run, view, vectors.rows, clustered)
    silhouettes = [of.silhouette.mean for of in clustered]
    chosen = recommended(silhouettes)
    if max(silhouettes) < NEAR_ZERO:
        notes.append(
            f"no number of clusters stands out: the best silhouette is {max(silhouettes):.3f}, so choose by what the "
            "order gains"
        )
    rows = [
        {"k": k, **_figures_of(of), **figure, "recommended": at == chosen}
        for at, (k, of, figure) in enumerate(zip(fits, clustered, figures, strict=True))
    ]
    return rows, notes


@contextmanager
def _timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[part] = round(time.perf_counter() - begin, 3)


def _fit_each(
    run: Run, space: Space, held: np.ndarray, values: tuple[int, ...]
) -> tuple[dict[int, ClusterFit], list[str]]:
    """The fit of each value of k, and which values were left out as they gave no more clusters than the one before."""
    settings = run.settings
    fits: dict[int, ClusterFit] = {}
    notes: list[str] = []
    with run.progress("fitting clusters", len(values), "values of k") as advance:
        for k in values:
            made = fit(
                held[: most_points(k, settings.clusters.algorithm)],
                k,
                algorithm=settings.clusters.algorithm,
                metric=settings.clusters.metric,
                seed=settings.seed,
                centre=space.centre,
            )
            advance(1)
            if fits and len(made.centroids) <= max(len(other.centroids) for other in fits.values()):
                notes.append(f"{k} left out: it gives no more clusters than a smaller number ({made.note})")
            else:
                fits[k] = made
    return fits, notes


def _figures_of(clustered: Clustered) -> dict[str, Any]:
    sizes = np.bincount(clustered.labels, minlength=len(clustered.silhouette.sizes))
    return {
        "clusters": len(sizes),
        "silhouette": clustered.silhouette.mean,
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
    }


def _orders(run: Run, view: View, rows: np.ndarray, clustered: list[Clustered]) -> list[dict[str, Any]]:
    """What each clustering does for the order of the records; see `_order_figures`."""
    tokens = token_files(run).column(view.documents, "lengths")[view.document_row]
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
) -> Outcome:
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
        vectors=partial(vector_sums, run) if settings.sequence.vectors else None,
    )
    return outcome


def _order_figures(ours: Outcome, shuffled: Outcome, clusters: int) -> dict[str, Any]:
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


def _picture(run: Run, found: Fit) -> str:
    """The file of the plot, drawn where it is not there."""
    folder = f"stages/k_calibration/{found.hash}"
    present = run.store.sealed(folder)
    if "picture" in present:
        return present["picture"]
    from dagster_divorder.view.pictures import k_calibration

    rows = load_table(run.store, found.folder)
    return run.store.seal(folder, "picture", k_calibration(rows), "png")


def load_table(store: LocalStore, folder: str) -> list[dict[str, Any]]:
    """The table, a row a value of k; `folder` is the fit's in the receipt."""
    return unpack_rows(store.read(f"{folder}/{TABLE}"))
