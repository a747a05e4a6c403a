"""Errors of each trait apart, up to every step and in every batch, as "Don't Shuffle, Optimize" reports them.

Letters: J trait values, L tokens a sequence, S steps, B batches, R orders, p_j the share of value j.

That paper tracks "the euclidian distance between expected tokens and actual tokens from each clusters and expected and
actual tokens from each document size bucket" throughout the ordering, "in addition to logging per-batch errors". So
for each trait, in tokens:

    cumulative error after step t      sqrt(sum_j (T_j(tL) - p_j tL)^2),   T_j the tokens of value j so far
    error of batch b                   sqrt(sum_j (n_bj - p_j n_b)^2),     n_bj its tokens of value j

Its claims are that ours is lower than random's "at all times", and that our worst batch is better than random's best.
They are counted here against several shuffles: a step is better where ours is below the best of them at that step.
At the end all tokens are there, every error is 0, and nothing is compared; nor where all are 0.
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
    """Errors of R orders, in tokens. cumulative: float32 (R, S), after every step. batch: float32 (R, B), of every full
    batch."""

    cumulative: NDArray[np.float32]
    batch: NDArray[np.float32]


def compare_errors(ours: TraitErrors, shuffled: TraitErrors) -> dict[str, dict[str, Any]]:
    """`cumulative` and `batch`, each of

    mean, worst: of ours. shuffled_mean: of the shuffle whose mean is the lowest. shuffled_least: the lowest error of
    all shuffles at any step. steps: that were compared. better: the share of them at which ours is below the best of
    the shuffles at the same step; None without a step. always: whether it is at all of them.
    """
    return {
        "cumulative": _compare(ours.cumulative[0, :-1], shuffled.cumulative[:, :-1]),
        "batch": _compare(ours.batch[0], shuffled.batch),
    }


def error_curves(ours: TraitErrors, shuffled: TraitErrors) -> dict[str, dict[str, Any]]:
    """The same as lines: `cumulative` and `batch`, each of `at`, progress in (0, 1), `ours`, and `shuffled`, a list a
    shuffle; means of neighbours, at most POINTS of them."""
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
