"""What every strategy is given: the items' sparse trait rows, checked once.

Letters: M items, J trait values, G groups of trait values, K labels, nnz stored entries.
Guarantee: whatever a `Problem` holds is finite, non-negative and in range; strategies check nothing again. The
caller's matrix is never written to.
Cost: O(nnz + J + M); index arrays are shared with the caller's matrix where their dtypes allow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.rows import row_entries
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.order_greedy import Rows

Order = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Totals:
    """Sums over a set of items: values float64 (J,), each trait value's; items, their number; norms, the sum of their
    rows' L2 norms in group 0 (what f2 keeps in pace)."""

    values: NDArray[np.float64]
    items: int
    norms: float

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            values=self.values + other.values, items=self.items + other.items, norms=self.norms + other.norms
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Targets:
    """A mix that moves. At progress[i] (float64 (P,), rising from 0 to 1, in shares of the tokens of group 0) trait
    value j is to have the share shares[i, j] (float64 (P, J)) of its group; in between, linearly interpolated."""

    progress: NDArray[np.float64]
    shares: NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """Items to order. Rows are CSR: item s has `data[k]` of trait value `indices[k]` for indptr[s] <= k < indptr[s+1].

    indptr int64 (M+1,); indices int32 (nnz,) in [0, J), rising inside a row; data int32, int64 or float64 (nnz,),
    >= 0; groups int32 (J,) in [0, G), none empty; weights float64 (G,) > 0. A stored zero is kept: it says to which
    trait value an item without tokens belongs.
    placed: what was consumed before the first of these items; whole: all there is to be consumed, whose mix is the
    target. Strategies without running totals need neither.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[Any]
    groups: NDArray[np.int32]
    weights: NDArray[np.float64]
    placed: Totals
    whole: Totals
    targets: Targets | None
    seed: int
    within_cluster: str
    sequence_length: int | None
    batch: int
    shards: int
    buffer: int
    f2_lambda: float
    block_strategy: str

    @property
    def items(self) -> int:
        """M."""
        return len(self.indptr) - 1

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """One label an item, int32 (M,) in [0, K), every label in use: its largest value of group 0.

        Labels are numbered as the trait values are; of equal values the first counts, and the first value of group 0
        stands in for an item that has none.
        """
        values = self._first_group[0]
        used = np.zeros(len(self.groups), bool)
        used[values] = True
        numbers = np.cumsum(used, dtype=np.int32) - np.int32(1)
        return numbers[values]

    @property
    def sizes(self) -> NDArray[Any]:
        """Sum of an item's row in group 0, int64 or float64 (M,), in the unit of the counts."""
        return self._first_group[1]

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
        return Totals(values=values, items=self.items, norms=float(norm[0]))

    @property
    def norms(self) -> NDArray[np.float64]:
        """L2 norm of an item's row in group 0, float64 (M,)."""
        norms = np.zeros(self.items)
        self._norms_into(norms)
        return norms

    def _norms_into(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        from dagster_divorder.core.kernels.order_items import norms_and_sums

        return norms_and_sums(self.indptr, self.indices, self.data, self.groups == 0, norms)

    def part(
        self, items: NDArray[np.int64], placed: Totals | None = None, seed: int | None = None
    ) -> Problem:
        """The problem of ordering some of the items, in [0, M), after `placed` (by default, what this one comes
        after). Its item i is items[i]; the target stays that of the whole."""
        entries, indptr = row_entries(self.indptr, items)
        return replace(
            self,
            indptr=indptr,
            indices=self.indices[entries],
            data=self.data[entries],
            placed=placed or self.placed,
            seed=self.seed if seed is None else seed,
        )

    def rows(self, pace: NDArray[np.float64] | None = None) -> Rows:
        """The items as the greedy kernels read them, `pace` (float64 (M,)) a further coordinate; not copied."""
        from dagster_divorder.core.kernels.order_greedy import Rows

        pace = np.zeros(0) if pace is None else pace
        return Rows(self.indptr, self.indices, self.data, self.groups, self.weights, pace)

    def first_group(self) -> Problem:
        """The same items with the trait values of group 0 alone."""
        kept = self.groups == 0
        if kept.all():
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
            placed=replace(self.placed, values=self.placed.values[kept]),
            whole=replace(self.whole, values=self.whole.values[kept]),
            targets=targets,
        )

    @cached_property
    def _first_group(self) -> tuple[NDArray[np.int32], NDArray[Any]]:
        from dagster_divorder.core.kernels.order_items import largest_and_sum

        in_first = self.groups == 0
        # The result has the kind of the sum: whole numbers stay whole.
        sums = np.zeros(self.items, np.float64 if self.data.dtype.kind == "f" else np.int64)
        values = largest_and_sum(self.indptr, self.indices, self.data, in_first, sums)
        return values, sums
