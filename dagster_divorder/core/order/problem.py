"""The input of every strategy: sparse trait rows of items.

Letters: M items, J trait values, G groups of trait values, K labels, nnz stored entries.
Guarantee: the caller's matrix is never written to.
Cost: O(nnz + J + M); index arrays are shared with the caller's matrix if dtypes allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from dagster_divorder.core.rows import SparseItems
from dagster_divorder.errors import InputError

Order = NDArray[np.int64]

NORM_BINS, NORM_WEIGHT = 64, 0.2
"""Quantile bins of the rows' norms, and their group's weight over the heaviest group's. Without the group, sequences of
one cluster drift to the end (docs/decisions/ordering.md)."""

AT_ONCE = 1 << 16
"""Rows that are summed or shifted at once; this avoids a second copy in float64."""

ROUNDING = 1e-13
"""A difference below this share of its terms is rounding."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """Items to order, with dense coordinates that are centred by token, so that they sum to zero; what strategies need
    besides."""

    rows: SparseItems
    seed: int
    batch: int

    @property
    def items(self) -> int:
        """M."""
        return len(self.rows.indptr) - 1

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """The label of each item, its largest value of group 0: int32 (M,) in [0, K), every label in use.

        Labels are numbered in the order of the trait values. Of equal values the first counts; an item without values
        in group 0 gets the group's first.
        """
        values, _ = self._first_group()
        used = np.zeros(len(self.rows.groups), bool)
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

    @cached_property
    def totals(self) -> NDArray[np.float64]:
        """Sum of the items' rows, float64 (J,)."""
        # Without entries, bincount counts in whole numbers.
        return np.bincount(self.rows.indices, self.rows.data, len(self.rows.groups)).astype(np.float64)

    def part(self, items: NDArray[np.int64]) -> Problem:
        """The problem of ordering `items` alone, in [0, M). Its item i is items[i]."""
        return replace(self, rows=self.rows.take(items)).recentred()

    def chunks(self) -> Iterator[tuple[slice, slice, NDArray[np.int64]]]:
        """(items, their entries, the item of each entry counted in the chunk, int64), AT_ONCE items at a time."""
        for first in range(0, self.items, AT_ONCE):
            ends = self.rows.indptr[first : first + AT_ONCE + 1]
            rows = np.arange(len(ends) - 1).repeat(np.diff(ends))
            yield slice(first, first + AT_ONCE), slice(ends[0], ends[-1]), rows

    def with_coordinate(self, values: NDArray[np.float64]) -> Problem:
        """The problem with one more dense coordinate, float64 (M,)."""
        dense = np.column_stack([self.rows.dense, values.astype(np.float32)])
        return replace(self, rows=self.rows._replace(dense=dense))

    def recentred(self) -> Problem:
        """The problem with dense coordinates shifted, by token, so that they sum to zero."""
        sizes, dense = self.sizes.astype(np.float64), self.rows.dense
        rate = dense.sum(axis=0, dtype=np.float64) / (sizes.sum() or 1.0)
        if not len(rate):
            return self
        out = np.empty(dense.shape, np.float32)
        for first in range(0, len(out), AT_ONCE):
            chunk = slice(first, first + AT_ONCE)
            out[chunk] = dense[chunk] - sizes[chunk, np.newaxis] * rate
        return replace(self, rows=self.rows._replace(dense=out))

    def with_norms(self) -> Problem:
        """The problem with one more group, in items: NORM_BINS quantile bins of the whole row's norm.

        A score of <D, a> + |a|^2 / 2 delays rows of large norm to the end, where they drift. Balanced like any trait,
        they come evenly. Source: the term of f2, which keeps the mean norm in pace but not its spread.
        """
        if not self.items:
            return self
        exact = self._row_norms()
        # Rows that differ only by rounding get one bin.
        norms = np.round(exact / (float(exact.max()) or 1.0), 9)
        edges = quantile_edges(norms, NORM_BINS)
        bins = bin_codes(norms, edges)
        if not len(edges):
            return self
        rows, first = self.rows, len(self.rows.groups)
        mean = float(self.sizes.sum()) / self.items
        # An item enters its bin as `unit` tokens; the weight makes it count as `mean` tokens. The unit is a power of
        # two near the mean, so that the order is the same if all items have 2**22 times the tokens.
        unit = 1 << max(0, math.frexp(mean)[1] - 1)
        weight = NORM_WEIGHT * rows.weights.max() * (mean / unit or 1.0) ** 2
        wider = SparseItems(
            indptr=rows.indptr + np.arange(self.items + 1),
            indices=np.insert(rows.indices, rows.indptr[1:], bins + np.int32(first)),
            data=np.insert(rows.data, rows.indptr[1:], unit),
            groups=np.append(rows.groups, np.full(len(edges) + 1, len(rows.weights), np.int32)),
            weights=np.append(rows.weights, weight),
            dense=rows.dense,
        )
        return replace(self, rows=wider)

    def _row_norms(self) -> NDArray[np.float64]:
        """L2 norms of the whole rows, float64 (M,), with their dense coordinates: weighed, and centred by the values'
        shares of their groups."""
        _, indices, counts, of_value, weights, dense = self.rows
        shares, groups = mix(self.totals, of_value), len(weights)
        square_of = np.bincount(of_value, shares * shares)
        norms = np.empty(self.items)
        for items, entries, row in self.chunks():
            out = norms[items]
            value, data = indices[entries], counts[entries].astype(np.float64)
            cell = row * groups + of_value[value]
            length = np.bincount(cell, data, len(out) * groups)
            excess = data - 2.0 * length[cell] * shares[value]
            square = np.bincount(row, weights[of_value[value]] * data * excess, len(out)) + 0.0
            size = np.zeros(len(out))
            for group, of_group in enumerate(length.reshape(-1, groups).T):
                square += weights[group] * of_group * of_group * square_of[group]
                size += weights[group] * of_group * of_group
            for coordinate in dense[items].T.astype(np.float64):
                square += coordinate * coordinate
                size += coordinate * coordinate
            # The norm of a row equal to the mix is only rounding error.
            out[:] = np.sqrt(np.where(square > ROUNDING * size, square, 0.0))
        return norms

    def first_group(self) -> Problem:
        """The same items with only the trait values of group 0."""
        rows = self.rows
        kept = rows.groups == 0
        if kept.all() and not rows.dense.shape[1]:
            return self
        entries = kept[rows.indices]
        before = np.concatenate([[0], np.cumsum(entries)])
        narrower = SparseItems(
            indptr=before[rows.indptr],
            indices=(np.cumsum(kept, dtype=np.int32) - np.int32(1))[rows.indices[entries]],
            data=rows.data[entries],
            groups=rows.groups[kept],
            weights=rows.weights[:1],
            dense=rows.dense[:, :0],
        )
        return replace(self, rows=narrower)

    def _first_group(self) -> tuple[NDArray[np.int32], NDArray[Any]]:
        _, indices, counts, groups, _, _ = self.rows
        # Whole numbers stay whole.
        sums = np.zeros(self.items, np.float64 if counts.dtype.kind == "f" else np.int64)
        values = np.empty(self.items, np.int32)
        for items, entries, row in self.chunks():
            values[items] = np.argmax(groups == 0)
            kept = groups[indices[entries]] == 0
            row, value = row[kept], indices[entries][kept]
            data = counts[entries][kept].astype(sums.dtype)
            np.add.at(sums[items], row, data)
            largest = np.zeros_like(sums[items])
            np.maximum.at(largest, row, data)
            # The first of equal ones is written last.
            top = np.flatnonzero(data == largest[row])[::-1]
            values[items][row[top]] = value[top]
        return values, sums


def mix(totals: NDArray[np.float64], groups: NDArray[np.int32]) -> NDArray[np.float64]:
    """Each value's share of its group, float64 (J,); 0 in an empty group."""
    group_totals = np.bincount(groups, weights=totals)[groups]
    return np.divide(totals, group_totals, out=np.zeros(len(totals)), where=group_totals > 0)
