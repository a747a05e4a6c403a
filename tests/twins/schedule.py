"""Slow and obvious twins of `core.kernels.schedule` and of the figures of `core.measure.schedule`, token by token."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def point_deviations(
    codes: NDArray[np.int32],
    edges: NDArray[np.int64],
    plain: NDArray[np.int32],
    window: int,
    share: NDArray[np.float64],
) -> tuple[list[float], list[float]]:
    """(tv, moved) of batches; codes and plain: the value of each token in both orders."""
    tv, moved = [], []
    for begin, end in pairwise(edges):
        low = min(max((begin + end - window) // 2, 0), len(plain) - window)
        around = np.bincount(plain[low : low + window], minlength=len(share)) / window
        inside = np.bincount(codes[begin:end], minlength=len(share)) / max(1, end - begin)
        tv.append(np.abs(inside - around).sum() / 2 if end > begin else 0.0)
        moved.append(np.abs(around - share).sum() / 2)
    return tv, moved


def mean_in(values: NDArray[np.float64], begin: float, end: float) -> float:
    """The mean over the tokens [begin, end), parts of tokens included, of those that are not NaN."""
    tokens = np.arange(len(values))
    weights = np.clip(np.minimum(tokens + 1, end) - np.maximum(tokens, begin), 0, 1) * ~np.isnan(values)
    return float((weights * np.nan_to_num(values)).sum() / weights.sum()) if weights.sum() else float("nan")
