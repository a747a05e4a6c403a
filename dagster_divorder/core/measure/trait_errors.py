"""Errors of each trait, up to every step and in every batch, as "Don't Shuffle, Optimize" reports them.

Letters: J trait values, L tokens a sequence, S steps, B batches, R orders, p_j the share of value j.

That paper tracks "the euclidian distance between expected tokens and actual tokens from each clusters and expected and
actual tokens from each document size bucket" throughout the ordering, "in addition to logging per-batch errors". So
for each trait, in tokens:

    cumulative error after step t      sqrt(sum_j (T_j(tL) - p_j tL)^2),   T_j the tokens of value j so far
    error of batch b                   sqrt(sum_j (n_bj - p_j n_b)^2),     n_bj its tokens of value j

The paper claims that its error is lower than random's "at all times", and that its worst batch is better than random's
best. Here our error is compared with several shuffles': a step is better if it is below the lowest of theirs. Steps at
which all errors are 0, such as the last one, are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.along import binned

POINTS = 300
"""Most points of a curve."""


@dataclass(frozen=True, eq=False)
class TraitErrors:
    """Errors of R orders, in tokens. cumulative: float32 (R, S), by step. batch: float32 (R, B), by full batch."""

    cumulative: NDArray[np.float32]
    batch: NDArray[np.float32]


def compare_errors(ours: TraitErrors, shuffled: TraitErrors) -> dict[str, dict[str, Any]]:
    """`cumulative` and `batch`, each with

    mean, worst: of ours. shuffled_mean: the lowest mean of a shuffle. shuffled_least: the lowest error of any shuffle
    at any step. steps: number of compared steps. better: share of them at which ours is below all shuffles; None
    without steps. always: whether that share is 1.
    """
    return {
        "cumulative": _compare(ours.cumulative[0, :-1], shuffled.cumulative[:, :-1]),
        "batch": _compare(ours.batch[0], shuffled.batch),
    }


def error_curves(ours: TraitErrors, shuffled: TraitErrors) -> dict[str, dict[str, Any]]:
    """The errors as curves: `cumulative` and `batch`, each with `at`, progress in (0, 1), `ours`, and `shuffled`, a
    list for each shuffle. A point is a mean of neighbours; there are at most POINTS."""
    return {
        name: {
            "at": binned(mine[0], POINTS).at.tolist(),
            "ours": binned(mine[0], POINTS).mean.tolist(),
            "shuffled": [binned(other, POINTS).mean.tolist() for other in others],
        }
        for name, mine, others in (
            ("cumulative", ours.cumulative, shuffled.cumulative),
            ("batch", ours.batch, shuffled.batch),
        )
    }


def _compare(ours: NDArray[np.float32], shuffled: NDArray[np.float32]) -> dict[str, Any]:
    # Orders that are packed separately may differ by a step.
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
