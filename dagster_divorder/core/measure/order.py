"""The measures of an order of sequences, by trait: one set, for stages, tables, comparisons and checks.

Letters: S sequences, J trait values, L tokens a sequence, E epochs, B full batches.

Guarantee: exact token counts in int64; deviations in float64; the same bytes for any number of threads.
Cost: O(Q + S J) a trait and epoch, for Q runs of tokens; O(J) memory beside the results.
Sources: Don't Shuffle, Optimize (the errors along training); Diversity-Ordered Training (distinct clusters).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.measure.along import binned
from dagster_divorder.core.measure.windows import Counts, Laid
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.packing.report import distinct_per_sequence

LARGEST = 10
"""Batches in the largest window measured."""
WINDOWS = ("sequence", "batch", f"{LARGEST} batches")
"""Windows that are measured from every sequence on, by rising size."""
CURVE = 1000
"""Most points of the curve of prefixes."""
POINTS = 300
"""Most points of the curve of an error."""

Figures = dict[str, Any]


@dataclass(frozen=True, eq=False)
class TraitErrors:
    """The errors of one trait in R orders, in tokens, as "Don't Shuffle, Optimize" tracks them "throughout the
    ordering, in addition to logging per-batch errors": with p_j the asked share of value j,

        cumulative: float32 (R, S), sqrt(sum_j (T_j - p_j T)^2), of the first T tokens, up to each sequence's end
        batch: float32 (R, B), sqrt(sum_j (n_j - p_j n)^2), of the n tokens of each full batch
    """

    cumulative: NDArray[np.float32]
    batch: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Measures:
    """All measures of one order, or their means over several (see `average`).

    errors: by trait; of all orders, if averaged. figures: plain values for JSON; shares in [0, 1]:

        documents, tokens, sequences, batches: of an epoch; only full batches. tokens are those that shares count.
        sequence_length, batch: L in tokens; sequences a batch.
        distinct: by trait, the distinct values in a sequence: mean, least, spread (standard deviation).
        batch_tv: by trait, the total variation of each full batch: mean, worst; 0 without one.
        windows: by window (WINDOWS) and trait, the largest share error of the windows that begin at each sequence, in
            all epochs: mean, worst; 0 in a training that is no longer than one window.
        seam: by trait, the same for batches across the end of an epoch and the beginning of the next.
        prefix: the deviation over all traits together, sqrt(sum of the squared cumulative errors), in tokens, at each
            sequence's end: mean, worst; its curve as share (of all tokens) and l2, of at most CURVE points.
    """

    figures: Figures
    errors: Mapping[str, TraitErrors]


def packed_counts(
    packed: PackedSequences,
    traits: Mapping[str, ArrayLike],
    n_values: Mapping[str, int],
    counted: ArrayLike | None = None,
) -> dict[str, Counts]:
    """The counts of each trait. traits: int (N,), by document, in [0, n_values[trait]). counted: int (Q,), the tokens
    of each run that shares count, by default all."""
    tokens = packed.length if counted is None else counted
    return {
        trait: Counts.of(packed.indptr, np.asarray(codes)[packed.document], tokens, n_values[trait])
        for trait, codes in traits.items()
    }


def measure(
    traits: Mapping[str, Counts],
    epochs: ArrayLike,
    *,
    batch: int,
    sequence_length: int = 1,
    documents: int = 0,
    stretch: ArrayLike | None = None,
) -> Measures:
    """Every measure of sequences in the order of the first epoch; `windows` and `seam` go on through all epochs.

    epochs: int (E, S) or (S,), place -> sequence. batch: sequences a batch. stretch: int (S,), the stretch of each
    sequence (`core.measure.windows`); None: one.
    """
    orders = np.atleast_2d(np.asarray(epochs, np.int64))
    sequences, full = orders.shape[1], orders.shape[1] // batch * batch
    first = next(iter(traits.values()))
    size = first.size[orders[0]]
    read, ends = np.cumsum(size), np.arange(1, sequences + 1)
    of_batch = size[:full].reshape(-1, batch).sum(axis=1)
    figures: Figures = {
        "documents": documents,
        "tokens": int(size.sum()),
        "sequences": sequences,
        "batches": sequences // batch,
        "sequence_length": sequence_length,
        "batch": batch,
        **{name: {} for name in ("distinct", "batch_tv", "seam")},
        "windows": {window: {} for window in WINDOWS},
    }
    errors, squares = dict[str, TraitErrors](), np.zeros(sequences)
    for trait, counts in traits.items():
        # The first epoch follows the last, as in a trainer that repeats one order.
        laid = Laid.of(counts, orders.ravel(), stretch, again=min(batch, sequences))
        cumulative = laid.deviations(0 * ends, ends).l2 * read
        anywhere = laid.sliding(batch)
        batches = anywhere.l2[:full:batch] * of_batch
        squares += np.square(cumulative)
        errors[trait] = TraitErrors(
            cumulative[np.newaxis].astype(np.float32), batches[np.newaxis].astype(np.float32)
        )
        distinct = distinct_per_sequence(counts.indptr, counts.codes)[orders[0]]
        figures["distinct"][trait] = {
            "mean": float(distinct.mean()) if sequences else 0.0,
            "least": int(distinct.min(initial=distinct.max(initial=0))),
            "spread": float(distinct.std()) if sequences else 0.0,
        }
        figures["batch_tv"][trait] = _mean_and_worst(anywhere.tv[:full:batch])
        for window, width in zip(WINDOWS, (1, batch, LARGEST * batch), strict=True):
            worst = anywhere.worst if width == batch else laid.sliding(width).worst
            # A window as long as the training has its mix, whatever the order.
            inside = orders.size - width + 1 if orders.size > width else 0
            figures["windows"][window][trait] = _mean_and_worst(worst[:inside])
        across = np.zeros(0)
        if sequences > batch:
            last = np.arange(1, len(orders) + 1) * sequences
            across = anywhere.worst[last[:, np.newaxis] - np.arange(batch + 1)]
        figures["seam"][trait] = _mean_and_worst(across)
    deviation, points = np.sqrt(squares), min(CURVE, sequences)
    kept = np.arange(1, points + 1) * sequences // max(1, points) - 1
    curve = {"share": (read[kept] / max(1, figures["tokens"])).tolist(), "l2": deviation[kept].tolist()}
    figures["prefix"] = {**_mean_and_worst(deviation), **curve}
    return Measures(figures, errors)


def _mean_and_worst(values: NDArray[np.float64]) -> Figures:
    """0 without values."""
    return {"mean": float(values.mean()) if values.size else 0.0, "worst": float(values.max(initial=0.0))}


def average(orders: Sequence[Measures]) -> Measures:
    """The mean of every figure over several orders of one corpus, such as shuffles with three seeds.

    Least and worst values are averaged too: an extreme over all orders would grow with their number. Curves are
    averaged point by point. Errors are put together, for as many steps as every order has: orders that are packed
    apart may differ by some.
    """
    errors = {}
    for trait in orders[0].errors:
        pairs = [(order.errors[trait].cumulative, order.errors[trait].batch) for order in orders]
        errors[trait] = TraitErrors(
            *(
                np.concatenate([one[:, : min(other.shape[1] for other in each)] for one in each])
                for each in zip(*pairs, strict=True)
            )
        )
    return Measures(_mean([order.figures for order in orders]), errors)


def _mean(values: Sequence[Any]) -> Any:
    """Of plain values; equal ones stay as they are, so that counts stay whole numbers."""
    first = values[0]
    if isinstance(first, dict):
        return {name: _mean([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        shortest = min(map(len, values))
        return np.mean([value[:shortest] for value in values], axis=0).tolist()
    return first if all(value == first for value in values) else float(np.mean(values))


def compare_errors(ours: TraitErrors, shuffled: TraitErrors) -> Figures:
    """`cumulative` and `batch` errors beside several shuffles', each with

    mean, worst: of ours. shuffled_mean: the lowest mean of a shuffle. shuffled_least: the lowest error of any shuffle
    at any step: the paper claims that its worst batch is better than random's best. steps: number of compared steps,
    those at which any error is above 0. better: share of them at which ours is below all shuffles; None without steps.
    always: whether that share is 1.
    """
    return {
        # All errors are 0 after the last step.
        "cumulative": _compare(ours.cumulative[0, :-1], shuffled.cumulative[:, :-1]),
        "batch": _compare(ours.batch[0], shuffled.batch),
    }


def _compare(ours: NDArray[np.float32], shuffled: NDArray[np.float32]) -> Figures:
    # Orders that are packed apart may differ by a step.
    steps = min(len(ours), shuffled.shape[1])
    ours, shuffled = ours[:steps], shuffled[:, :steps]
    best = shuffled.min(axis=0)
    either = (ours > 0) | (best > 0)
    better = (ours < best)[either]
    if not better.size:
        return dict.fromkeys(("mean", "worst", "shuffled_mean", "shuffled_least", "better", "always")) | {
            "steps": 0
        }
    return {
        "mean": float(ours[either].mean(dtype=np.float64)),
        "worst": float(ours[either].max()),
        "shuffled_mean": float(shuffled[:, either].mean(axis=1, dtype=np.float64).min()),
        "shuffled_least": float(shuffled[:, either].min()),
        "better": float(better.mean()),
        "always": bool(better.all()),
        "steps": int(better.size),
    }


def error_curves(ours: TraitErrors, shuffled: TraitErrors) -> Figures:
    """The errors as curves: `cumulative` and `batch`, each with `at`, progress in (0, 1), `ours`, and `shuffled`, a
    list for each shuffle. A point is a mean of neighbours; there are at most POINTS."""
    curves = {}
    for name in ("cumulative", "batch"):
        line, *others = (binned(row, POINTS) for of in (ours, shuffled) for row in getattr(of, name))
        shuffles = [other.mean.tolist() for other in others]
        curves[name] = {"at": line.at.tolist(), "ours": line.mean.tolist(), "shuffled": shuffles}
    return curves
