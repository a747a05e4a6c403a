"""Measures along an order, reduced to the resolution of a picture.

Letters: N runs of tokens in reading order, S windows, B bins, C equal slices of the tokens, Q quantiles, K values.
Guarantee: every window counts in exactly one bin; shares and quantiles are exact.
Cost: O(S) for bins; O(N log N + C K) for slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]


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
    count = min(bins, len(measure))
    edges = np.arange(count + 1) * len(measure) // max(count, 1)
    if count == 0:
        return Binned(*(np.zeros(0) for _ in range(4)))
    return Binned(
        at=(edges[:-1] + edges[1:]) / (2 * len(measure)),
        mean=np.add.reduceat(measure, edges[:-1]) / np.diff(edges),
        low=np.minimum.reduceat(measure, edges[:-1]),
        high=np.maximum.reduceat(measure, edges[:-1]),
    )


def _slices(tokens: ArrayLike, columns: int) -> tuple[Ints, Ints, Ints]:
    """(run, slice, size) of each part of a run in one slice, int64 each. Slice c is [c T / columns, (c + 1) T /
    columns) of the T tokens. Its edges may split a token; in units of 1 / columns tokens, which sizes have, they are
    whole.
    """
    counts = np.asarray(tokens, np.int64)
    total = int(counts.sum())
    ends = np.cumsum(counts * columns)
    cuts = np.union1d(ends, np.arange(1, columns + 1) * total)
    sizes = np.diff(cuts, prepend=0)
    starts, sizes = (cuts - sizes)[sizes > 0], sizes[sizes > 0]
    return np.searchsorted(ends, starts, side="right"), starts // max(total, 1), sizes


def cluster_mix(tokens: ArrayLike, codes: ArrayLike, n_values: int, columns: int) -> NDArray[np.float32]:
    """Token share of each value in `columns` equal slices of the tokens, float32 (columns, K).

    tokens, codes: int (N,), by run; codes in [0, n_values). A row sums to 1; without tokens it is 0.
    """
    run, column, sizes = _slices(tokens, columns)
    counts = np.zeros((columns, n_values), np.int64)
    np.add.at(counts, (column, np.asarray(codes)[run]), sizes)
    return (counts / max(1, int(sizes.sum()) // columns)).astype(np.float32)


def quantiles_along(
    tokens: ArrayLike, values: ArrayLike, columns: int, quantiles: Sequence[float]
) -> NDArray[np.float64]:
    """Quantiles above 0 of a number that runs have, such as their document's length, in slices of the tokens, (C, Q).

    values: (N,) by run; NaN is ignored. Quantile q is the smallest value that a share of at least q of the slice's
    tokens does not exceed; NaN if no tokens count.
    """
    run, column, sizes = _slices(tokens, columns)
    value = np.asarray(values, np.float64)[run]
    rising = np.lexsort((value, column))
    rising = rising[~np.isnan(value[rising])]
    below = np.cumsum(sizes[rising])
    before = np.append(0, below)[np.searchsorted(column[rising], np.arange(columns + 1))]
    inside = np.diff(before)
    at = np.searchsorted(below, before[:-1, None] + np.ceil(np.outer(inside, quantiles)).astype(np.int64))
    found = np.append(value[rising], np.nan)[np.minimum(at, len(rising))]
    found[inside == 0] = np.nan
    return found
