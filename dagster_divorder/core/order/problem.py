"""What every strategy is given: the items' sparse trait rows, checked once.

Letters: M items, J trait values, G groups of trait values, K labels, nnz stored entries.
Guarantee: whatever a `Problem` holds is finite, non-negative and in range; strategies check nothing again. The
caller's matrix is never written to.
Cost: O(nnz + J + M); index arrays are shared with the caller's matrix where their dtypes allow.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

    from dagster_divorder.core.kernels.order_greedy import Rows

Order = NDArray[np.int64]

WITHIN_CLUSTER = ("original", "length-asc", "length-desc", "length-riffle")
# Sums of two totals and their signed differences stay inside int64.
LARGEST_TOTAL = 2**62


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
        widths = np.diff(self.indptr)[items]
        indptr = np.concatenate([[0], np.cumsum(widths)])
        entries = np.arange(indptr[-1]) + (self.indptr[items] - indptr[:-1]).repeat(widths)
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


def make_problem(
    counts: csr_matrix | csr_array,
    groups: ArrayLike,
    *,
    weights: Sequence[float] | NDArray[Any] | None = None,
    seed: int = 0,
    within_cluster: str = "original",
    sequence_length: int | None = None,
    batch: int = 256,
    shards: int = 64,
    buffer: int = 10_000,
    targets: Targets | None = None,
) -> Problem:
    """Check the arguments of `order`, which have the same defaults there, and put them into a `Problem`.

    Raises:
        InputError: an argument cannot be used; the message says which, and what was expected.
    """
    indptr, indices, data = _rows(counts)
    group_of = _groups(groups, counts.shape[1])
    nothing = Totals(values=np.zeros(len(group_of)), items=0, norms=0.0)
    problem = Problem(
        indptr=indptr,
        indices=indices,
        data=data,
        groups=group_of,
        weights=_weights(weights, int(group_of.max()) + 1 if group_of.size else 1),
        seed=_whole("seed", seed, 0),
        within_cluster=one_of("within_cluster", within_cluster, WITHIN_CLUSTER),
        sequence_length=None if sequence_length is None else _whole("sequence_length", sequence_length, 1),
        batch=_whole("batch", batch, 1),
        shards=_whole("shards", shards, 1),
        buffer=_whole("buffer", buffer, 1),
        targets=targets,
        placed=nothing,
        whole=nothing,
    )
    return replace(problem, whole=problem.totals())


def frozen_items(frozen: ArrayLike | None, items: int) -> NDArray[np.int64]:
    """`frozen`, int64 (F,), checked: distinct items in [0, M).

    Raises:
        InputError: it is longer than the items, names an item twice, or one that is not there.
    """
    array = np.asarray([] if frozen is None else frozen)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"frozen is {array.dtype} of shape {array.shape}; expected whole numbers (F,), items"
        )
    if len(array) > items:
        raise InputError(f"frozen names {len(array)} items of {items}; expected at most as many as there are")
    if array.min() < 0 or array.max() >= items:
        wrong = array.min() if array.min() < 0 else array.max()
        raise InputError(f"frozen names item {wrong}; there are {items}, counted from 0")
    values, times = np.unique(array, return_counts=True)
    if len(values) < len(array):
        raise InputError(f"frozen names item {values[times > 1][0]} twice; an item is consumed once")
    return array.astype(np.int64)


def _rows(counts: Any) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[Any]]:
    from scipy.sparse import csr_array, csr_matrix

    if not isinstance(counts, csr_array | csr_matrix) or counts.ndim != 2:
        raise InputError(
            f"counts is {type(counts).__name__}; expected a SciPy CSR matrix (items x trait values): "
            "scipy.sparse.csr_matrix(counts) makes one"
        )
    if not counts.has_canonical_format:
        counts = counts.copy()
        counts.sum_duplicates()
    data = counts.data
    if data.dtype.kind not in "biuf":
        raise InputError(f"counts holds {data.dtype}; expected whole or real numbers")
    if data.size:
        if data.dtype.kind == "f" and not np.isfinite(data).all():
            raise InputError(
                f"counts holds {data[~np.isfinite(data)][0]}; expected finite numbers of 0 or more"
            )
        if data.dtype.kind != "b" and data.min() < 0:
            raise InputError(f"counts holds {data.min()}; expected numbers of 0 or more")
        if (total := float(data.sum(dtype=np.float64))) >= LARGEST_TOTAL:
            raise InputError(
                f"counts sums to {total:.3g}; expected less than 2**62: use a coarser unit than tokens"
            )
    if data.dtype not in (np.int32, np.int64, np.float64):
        data = data.astype(np.float64 if data.dtype.kind == "f" else np.int64)
    return counts.indptr.astype(np.int64, copy=False), counts.indices.astype(np.int32, copy=False), data


def _groups(groups: ArrayLike, trait_values: int) -> NDArray[np.int32]:
    array = np.asarray(groups)
    if array.shape != (trait_values,):
        raise InputError(
            f"groups has shape {array.shape}; expected ({trait_values},), one group for each column of counts"
        )
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"groups holds {array.dtype}; expected whole numbers 0..G-1")
    present = np.unique(array)
    if not np.array_equal(present, np.arange(present.size)):
        raise InputError(
            f"groups holds {present[:10].tolist()}{'...' if present.size > 10 else ''}; "
            "expected every number 0..G-1 at least once: numpy.unique(groups, return_inverse=True)[1] renumbers them"
        )
    return array.astype(np.int32)


def _weights(weights: Sequence[float] | NDArray[Any] | None, groups: int) -> NDArray[np.float64]:
    if weights is None:
        return np.ones(groups)
    array = np.asarray(weights, np.float64)
    if array.shape != (groups,):
        raise InputError(f"weights has shape {array.shape}; expected ({groups},), one weight for each group")
    if (wrong := np.flatnonzero(~(np.isfinite(array) & (array > 0)))).size:
        raise InputError(
            f"the weight of group {wrong[0]} is {array[wrong[0]]}; expected a number above 0: "
            "leave a group's columns out of counts to ignore it"
        )
    return array


def _whole(name: str, value: int, smallest: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = smallest - 1
    if number < smallest:
        raise InputError(f"{name} is {value!r}; expected a whole number of {smallest} or more")
    return number


def one_of(name: str, value: str, known: Sequence[str]) -> str:
    """`value`, if it is known; the error of one that is not names the nearest."""
    import difflib

    if value not in known:
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(known)}{hint}")
    return value
