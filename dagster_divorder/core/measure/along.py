"""Measures along an order, reduced to the resolution of a picture.

Letters: N documents, S windows, B bins, C slices of the ordered corpus, Q quantiles, K values of a trait.
Guarantee: every window counts in exactly one bin; shares and quantiles are exact.
Cost: O(S); shares O(N log N + C K); quantiles O(N log N) time, O(N) memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive, whole_numbers
from dagster_divorder.core.measure.runs import indices_in
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


def tokens_in_order(order: ArrayLike, tokens: ArrayLike) -> NDArray[np.int64]:
    """Token counts in order, int64 (N,). InputError if an index is out of range or a count is negative."""
    # Only gathered entries have to be in range: documents that the order leaves out may hold anything.
    counts = whole_numbers("tokens", tokens, each="document", least=None)
    gathered = whole_numbers("tokens", counts[indices_in(order, len(counts), "document")], each="document")
    return np.ascontiguousarray(gathered, np.int64)


def cluster_mix(
    order: ArrayLike, tokens: ArrayLike, labels: ArrayLike, n_values: int, columns: int
) -> NDArray[np.float32]:
    """Token share of each cluster in `columns` equal slices of the ordered corpus, float32 (columns, K).

    Slice c is [c T / columns, (c + 1) T / columns) of the T tokens. Its edges may split a token; in units of 1 /
    columns tokens they are whole, so shares are exact. A row sums to 1; without tokens it is 0.
    """
    stream = tokens_in_order(order, tokens)
    values = whole_numbers("codes", np.asarray(labels)[np.asarray(order)], each="document", below=n_values)
    total = _in_columns(int(stream.sum()), positive("columns", columns))
    if total == 0:
        return np.zeros((columns, n_values), np.float32)
    ends = np.cumsum(stream * columns)
    cuts = np.union1d(ends, np.arange(1, columns + 1) * total)
    sizes = np.diff(cuts, prepend=0)
    starts, counts = cuts - sizes, np.zeros((columns, n_values), np.int64)
    np.add.at(counts, (starts // total, values[np.searchsorted(ends, starts, side="right")]), sizes)
    return (counts / total).astype(np.float32)


def _in_columns(total: int, columns: int) -> int:
    """The total. InputError if the tokens times columns overflow."""
    if total * columns > np.iinfo(np.int64).max:
        raise InputError(f"{total} tokens in {columns} columns overflow 64 bits; ask for fewer columns")
    return total


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
    total = _in_columns(int(stream.sum()), positive("columns", columns))
    slices = np.full((columns, len(quantiles)), np.nan)
    if total == 0:
        return slices
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


@dataclass(frozen=True, eq=False)
class Largest:
    """values: int64 (n,), the kept values by falling tokens. tokens: int64 (n,), of each. codes: int32 (N,), the index
    of each document's value in `values`; n for the others. others: number of merged values."""

    values: NDArray[np.int64]
    tokens: NDArray[np.int64]
    codes: NDArray[np.int32]
    others: int
    other_tokens: int

    @property
    def count(self) -> int:
        """Number of codes: the kept values, and one for the others if there are any."""
        return len(self.values) + (self.others > 0)


def largest(tokens: ArrayLike, codes: ArrayLike, n_values: int, keep: int) -> Largest:
    """The `keep` values with the most tokens, ties by number. Values without tokens are not counted as others.

    tokens, codes: (N,) by document; codes in [0, n_values). O(N + J log J).
    """
    lengths, code = np.asarray(tokens, np.int64), np.asarray(codes)
    # np.bincount sums floats, which are exact only up to 2**53 tokens.
    sizes = np.zeros(n_values, np.int64)
    np.add.at(sizes, code, lengths)
    ranked = np.argsort(-sizes, kind="stable")
    in_use = int((sizes > 0).sum())
    kept = ranked[: min(keep, in_use)]
    place = np.full(n_values, len(kept), np.int32)
    place[kept] = np.arange(len(kept))
    others = in_use - len(kept)
    if others == 0 and len(kept):
        # Values without tokens are not drawn, so any code will do.
        place[place == len(kept)] = 0
    return Largest(kept, sizes[kept], place[code], others, int(sizes.sum() - sizes[kept].sum()))
