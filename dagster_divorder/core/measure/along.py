"""Measures along an order, reduced to the resolution of a picture.

Letters: N runs of tokens in reading order, S windows, B bins, C equal slices of the tokens, Q quantiles, K values.
Guarantee: every window counts in exactly one bin; shares are exact, quantiles those of a sample.
Cost: O(S) for bins; O(N log N + C K) for slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.distinct import distinct_values

SAMPLED = 1_000
"""Tokens of a slice whose quantiles are taken."""


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


def cluster_mix(tokens: ArrayLike, codes: ArrayLike, n_values: int, columns: int) -> NDArray[np.float32]:
    """Token share of each value in `columns` equal slices of the tokens, float32 (columns, K).

    tokens, codes: int (N,), by run; codes in [0, n_values). A row sums to 1; without tokens it is 0. Slice c is [c T /
    columns, (c + 1) T / columns) of the T tokens. Its edges may split a token; in units of 1 / columns tokens they are
    whole.
    """
    ends = np.cumsum(np.asarray(tokens, np.int64) * columns)
    total = int(ends[-1]) // columns if len(ends) else 0
    cuts = distinct_values(np.append(ends, np.arange(1, columns + 1) * total))
    sizes = np.diff(cuts, prepend=0)
    starts, sizes = (cuts - sizes)[sizes > 0], sizes[sizes > 0]
    run, column = np.searchsorted(ends, starts, side="right"), starts // max(total, 1)
    counts = np.zeros((columns, n_values), np.int64)
    np.add.at(counts, (column, np.asarray(codes)[run]), sizes)
    return (counts / max(1, int(sizes.sum()) // columns)).astype(np.float32)


def quantiles_along(
    tokens: ArrayLike, values: ArrayLike, columns: int, quantiles: Sequence[float]
) -> NDArray[np.float64]:
    """Quantiles of a number that runs have, such as their document's length, in slices of the tokens, (C, Q); NaN
    without tokens. They are those of SAMPLED tokens a slice, at even distances. tokens, values: (N,) by run."""
    ends = np.cumsum(np.asarray(tokens, np.int64))
    if not len(ends) or not ends[-1]:
        return np.full((columns, len(quantiles)), np.nan)
    at = (2 * np.arange(columns * SAMPLED) + 1) * int(ends[-1]) // (2 * columns * SAMPLED)
    sampled = np.asarray(values, np.float64)[np.searchsorted(ends, at, side="right")]
    return np.quantile(sampled.reshape(columns, SAMPLED), quantiles, axis=1, method="inverted_cdf").T
