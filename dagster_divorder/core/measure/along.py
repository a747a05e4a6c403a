"""A measure along an order, reduced to the resolution of a picture.

Letters: N documents, S windows, B bins, C slices of the ordered corpus, Q quantiles.
Guarantee: every window counts in exactly one bin; quantiles are exact.
Cost: O(S); quantiles O(N log N) time, O(N) memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive
from dagster_divorder.core.measure.stream import indices_in, tokens_in_order
from dagster_divorder.errors import InputError


@dataclass(frozen=True, eq=False)
class Binned:
    """Windows in B bins of neighbours; the bins' sizes differ by at most one.

    at: float64 (B,), the middle of each bin as a share of the windows, in (0, 1). mean, low, high: float64 (B,), mean,
    smallest and largest value in the bin.
    """

    at: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def binned(values: ArrayLike, bins: int) -> Binned:
    """A measure of S windows in order, (S,), in at most `bins` bins; no bin is empty."""
    measure = np.asarray(values, np.float64)
    count = min(positive("bins", bins), len(measure))
    edges = np.arange(count + 1) * len(measure) // max(count, 1)
    if count == 0:
        return Binned(*(np.zeros(0) for _ in range(4)))
    return Binned(
        at=(edges[:-1] + edges[1:]) / (2 * len(measure)),
        mean=np.add.reduceat(measure, edges[:-1]) / np.diff(edges),
        low=np.minimum.reduceat(measure, edges[:-1]),
        high=np.maximum.reduceat(measure, edges[:-1]),
    )


def quantiles_along(
    order: ArrayLike, tokens: ArrayLike, values: ArrayLike, columns: int, quantiles: Sequence[float]
) -> NDArray[np.float64]:
    """Quantiles of a number that documents have, such as their length, in equal slices of the ordered corpus, (C, Q).

    values: (N,) by document; NaN is ignored. Slice c is [c T / columns, (c + 1) T / columns) of the T tokens; a
    document counts with its tokens there. Quantile q is the smallest value that a share of at least q of the slice's
    tokens does not exceed.
    NaN if no tokens count.
    """
    indices = indices_in(order, len(np.asarray(tokens)), "document")
    stream = tokens_in_order(order, tokens)
    total = int(stream.sum())
    slices = np.full((positive("columns", columns), len(quantiles)), np.nan)
    if total == 0:
        return slices
    if total * columns > np.iinfo(np.int64).max:
        raise InputError(f"{total} tokens in {columns} columns overflow 64 bits; ask for fewer columns")
    # In units of 1 / columns tokens, the edges of slices are whole numbers.
    ends = np.cumsum(stream * columns)
    starts = ends - stream * columns
    ordered = np.asarray(values, np.float64)[indices]
    for column in range(columns):
        low, high = column * total, (column + 1) * total
        first, last = np.searchsorted(ends, low, side="right"), np.searchsorted(starts, high, side="left")
        inside = np.minimum(ends[first:last], high) - np.maximum(starts[first:last], low)
        # NaN sorts last.
        rising = np.argsort(ordered[first:last], kind="stable")
        rising = rising[: np.count_nonzero(~np.isnan(ordered[first:last]))]
        if not len(rising):
            continue
        below = np.cumsum(inside[rising])
        at = np.searchsorted(below, np.ceil(np.asarray(quantiles) * below[-1]), side="left")
        slices[column] = ordered[first:last][rising][np.minimum(at, len(below) - 1)]
    return slices
