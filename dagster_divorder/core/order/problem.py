"""The input of every strategy: sparse trait rows of items, checked once.

Letters: M items, J trait values, G groups of trait values, K labels, nnz stored entries.
Guarantee: all counts of a `Problem` are finite, non-negative and in range, so strategies do not check again. The
caller's matrix is never written to.
Cost: O(nnz + J + M); index arrays are shared with the caller's matrix if dtypes allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.order_greedy import SparseItems

Order = NDArray[np.int64]

NORM_BINS, NORM_WEIGHT = 64, 0.2
"""Quantile bins of the rows' norms, and their group's weight over the heaviest group's. Sequences of one cluster over
tenths of the mixture corpus, chi2 by degree of freedom (1 in a shuffle): without the group 9.1, with 16 bins of weight
0.1 1.1, 64 bins 1.2, 64 of weight 0.3 0.5; newsgroups 4.0, 1.1, 1.5, 0.7. Prefixes of synthetic sequences stray 0.98,
1.04, 1.04 and 1.07 times as far as f3's in clusters."""

CENTRED_AT_ONCE = 1 << 16
"""Rows of dense coordinates that are shifted at once; this avoids a second copy in float64."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Totals:
    """Sums over a set of items. values: float64 (J,), by trait value. items: their number. norms: of their rows' L2
    norms in group 0, which f2 keeps in pace. dense: float64 (D,), of their dense coordinates."""

    values: NDArray[np.float64]
    items: int
    norms: float
    dense: NDArray[np.float64]

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            values=self.values + other.values,
            items=self.items + other.items,
            norms=self.norms + other.norms,
            dense=self.dense + other.dense,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Targets:
    """A mix that moves. At progress[i] (float64 (P,), rising from 0 to 1, in shares of the tokens of group 0) trait
    value j should have the share shares[i, j] (float64 (P, J)) of its group; linear in between."""

    progress: NDArray[np.float64]
    shares: NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """Items to order. Rows are CSR: item s has `data[k]` of trait value `indices[k]` for indptr[s] <= k < indptr[s+1].

    indptr int64 (M+1,); indices int32 (nnz,) in [0, J), rising inside a row; data int32, int64 or float64 (nnz,),
    >= 0; groups int32 (J,) in [0, G), none empty; weights float64 (G,) > 0. A stored zero is kept: it gives an item
    without tokens its trait value.
    dense float32 (M, D): signed coordinates, centred, so that they sum to zero over the whole.
    scores: float64 (M,), NaN where an item has none; None if the strategy ignores them.
    placed: totals of the items consumed before these. whole: totals of everything, the target mix. Strategies without
    running totals need neither.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[Any]
    groups: NDArray[np.int32]
    weights: NDArray[np.float64]
    dense: NDArray[np.float32]
    placed: Totals
    whole: Totals
    targets: Targets | None
    seed: int
    sequence_length: int | None
    batch: int
    scores: NDArray[np.float64] | None = None

    @property
    def items(self) -> int:
        """M."""
        return len(self.indptr) - 1

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """The label of each item, its largest value of group 0: int32 (M,) in [0, K), every label in use.

        Labels are numbered in the order of the trait values. Of equal values the first counts; an item without values
        in group 0 gets the group's first.
        """
        values, _ = self._first_group()
        used = np.zeros(len(self.groups), bool)
        used[values] = True
        numbers = np.cumsum(used, dtype=np.int32) - np.int32(1)
        return numbers[values]

    @cached_property
    def sizes(self) -> NDArray[Any]:
        """Sums of the items' rows in group 0, int64 or float64 (M,), in the unit of the counts."""
        _, sums = self._first_group()
        return sums

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens an item, int64 (M,): the sum of its row in group 0.

        Raises:
            InputError: the sums are not whole numbers.
        """
        sums = self.sizes
        if sums.dtype == np.int64:
            return sums
        whole = np.rint(sums)
        if (broken := np.flatnonzero(whole != sums)).size:
            raise InputError(
                f"item {broken[0]} has {sums[broken[0]]} tokens in group 0; this strategy compares lengths exactly and "
                "expects whole numbers: give group 0 in tokens, or use 'balanced', which takes any unit"
            )
        return whole.astype(np.int64)

    def totals(self) -> Totals:
        """Sums over these items."""
        norm = np.zeros(1)
        values = self._norms_into(norm)
        return Totals(
            values=values,
            items=self.items,
            norms=float(norm[0]),
            dense=self.dense.sum(axis=0, dtype=np.float64),
        )

    @property
    def norms(self) -> NDArray[np.float64]:
        """L2 norms of the items' rows in group 0, float64 (M,)."""
        norms = np.zeros(self.items)
        self._norms_into(norms)
        return norms

    def _norms_into(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        from dagster_divorder.core.kernels.order_items import norms_and_sums

        return norms_and_sums(self.rows(), norms)

    def part(self, items: NDArray[np.int64], placed: Totals | None = None) -> Problem:
        """The problem of ordering `items`, in [0, M), after `placed` (by default this problem's). Its item i is
        items[i]; the target stays the whole's mix."""
        from dagster_divorder.core.kernels.order_items import rows_of

        rows = rows_of(items, self.rows())
        return replace(
            self,
            indptr=rows.indptr,
            indices=rows.indices,
            data=rows.data,
            dense=rows.dense,
            placed=placed or self.placed,
            scores=None if self.scores is None else self.scores[items],
        )

    def rows(self) -> SparseItems:
        """The items as kernels read them; nothing is copied."""
        from dagster_divorder.core.kernels.order_greedy import SparseItems

        return SparseItems(self.indptr, self.indices, self.data, self.groups, self.weights, self.dense)

    def with_coordinate(self, values: NDArray[np.float64], placed: float) -> Problem:
        """The problem with one more dense coordinate, float64 (M,); `placed` is its sum over the placed items."""
        return replace(
            self,
            dense=np.column_stack([self.dense, values.astype(np.float32)]),
            placed=replace(self.placed, dense=np.append(self.placed.dense, placed)),
        )

    def recentred(self, placed: NDArray[np.float64]) -> Problem:
        """The problem with dense coordinates shifted, by token, so that they sum to zero with `placed`, float64
        (D,)."""
        sizes = self.sizes.astype(np.float64)
        rate = (self.dense.sum(axis=0, dtype=np.float64) + placed) / (sizes.sum() or 1.0)
        return replace(
            self, dense=less_rate(self.dense, sizes, rate), placed=replace(self.placed, dense=placed)
        )

    def with_norms(self) -> Problem:
        """The problem with one more group, in items: NORM_BINS quantile bins of the whole row's norm.

        A score of <D, a> + |a|^2 / 2 delays rows of large norm to the end, where they drift. Balanced like any trait,
        they come evenly. Source: the term of f2, which keeps the mean norm in pace but not its spread.
        """
        from dagster_divorder.core.kernels.order_items import row_norms, with_entry

        if not self.items:
            return self
        shares = mix(self.whole.values, self.groups)
        exact = row_norms(self.rows(), shares)
        # Rows that differ only by rounding get one bin.
        norms = np.round(exact / (float(exact.max()) or 1.0), 9)
        edges = quantile_edges(norms, NORM_BINS)
        bins = bin_codes(norms, edges)
        if not len(edges):
            return self
        first = len(self.groups)
        mean = float(self.sizes.sum()) / self.items
        # An item enters its bin as `unit` tokens; the weight makes it count as `mean` tokens. The unit is a power of
        # two near the mean, so that the order is the same if all items have 2**22 times the tokens.
        unit = 1 << max(0, math.frexp(mean)[1] - 1)
        weight = NORM_WEIGHT * self.weights.max() * (mean / unit or 1.0) ** 2
        of_bins = np.bincount(bins, minlength=len(edges) + 1).astype(np.float64)
        targets = self.targets
        if targets is not None:
            rows = np.broadcast_to(of_bins / self.items, (len(targets.progress), len(of_bins)))
            targets = replace(targets, shares=np.column_stack([targets.shares, rows]))
        indptr, indices, data = with_entry(self.rows(), bins + np.int32(first), unit)
        return replace(
            self,
            indptr=indptr,
            indices=indices,
            data=data,
            groups=np.append(self.groups, np.full(len(of_bins), len(self.weights), np.int32)),
            weights=np.append(self.weights, weight),
            placed=replace(self.placed, values=np.append(self.placed.values, np.zeros(len(of_bins)))),
            whole=replace(self.whole, values=np.append(self.whole.values, unit * of_bins)),
            targets=targets,
        )

    def first_group(self) -> Problem:
        """The same items with only the trait values of group 0."""
        kept = self.groups == 0
        if kept.all() and not self.dense.shape[1]:
            return self
        entries = kept[self.indices]
        before = np.concatenate([[0], np.cumsum(entries)])
        targets = self.targets
        if targets is not None:
            targets = Targets(progress=targets.progress, shares=np.asarray(targets.shares)[:, kept])
        return replace(
            self,
            indptr=before[self.indptr],
            indices=(np.cumsum(kept, dtype=np.int32) - np.int32(1))[self.indices[entries]],
            data=self.data[entries],
            groups=self.groups[kept],
            weights=self.weights[:1],
            dense=self.dense[:, :0],
            placed=replace(self.placed, values=self.placed.values[kept], dense=self.placed.dense[:0]),
            whole=replace(self.whole, values=self.whole.values[kept], dense=self.whole.dense[:0]),
            targets=targets,
        )

    def _first_group(self) -> tuple[NDArray[np.int32], NDArray[Any]]:
        from dagster_divorder.core.kernels.order_items import largest_and_sum

        # Whole numbers stay whole.
        sums = np.zeros(self.items, np.float64 if self.data.dtype.kind == "f" else np.int64)
        values = largest_and_sum(self.rows(), sums)
        return values, sums


def mix(totals: NDArray[np.float64], groups: NDArray[np.int32]) -> NDArray[np.float64]:
    """Each value's share of its group, float64 (J,); 0 in an empty group."""
    group_totals = np.bincount(groups, weights=totals)[groups]
    return np.divide(totals, group_totals, out=np.zeros(len(totals)), where=group_totals > 0)


def less_rate(
    coordinates: NDArray[Any], sizes: NDArray[np.float64], rate: NDArray[np.float64]
) -> NDArray[np.float32]:
    """coordinates (M, D) - sizes (M,) x rate (D,), float32 (M, D)."""
    out = np.empty(coordinates.shape, np.float32)
    for first in range(0, len(out), CENTRED_AT_ONCE):
        chunk = slice(first, first + CENTRED_AT_ONCE)
        out[chunk] = coordinates[chunk] - sizes[chunk, np.newaxis] * rate
    return out
