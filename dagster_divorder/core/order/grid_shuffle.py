"""grid_shuffle: lays contiguous parts out in a grid, mixes the items of each column, then those of each row.

Letters: M items, P parts (shards), C columns, R rows.

Guarantee: every item can reach every place. One column or row is needed at a time, about M / C items with C the root of
P. Each has its own random numbers, so `dagster_divorder.write.grid` gives files the same order as items in memory.
Cost: O(M + P). As random as a shuffle, no better. Source: TokenShard (On Shuffling Tokens).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.baselines import ShardOptions
from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategy import Strategy


@dataclass(frozen=True)
class Grid:
    """Items 0 to M - 1 in P contiguous parts of nearly equal size, row by row in the squarest grid."""

    items: int
    shards: int
    seed: int

    @property
    def columns(self) -> int:
        """C."""
        return math.isqrt(self.shards - 1) + 1

    @property
    def rows(self) -> int:
        """R."""
        return -(-self.shards // self.columns)

    def column(self, number: int) -> list[range]:
        """The items of each part of a column, from the top row down. The last row may lack that part."""
        return [
            range(self._begin(part), self._begin(part + 1))
            for part in range(number, self.shards, self.columns)
        ]

    def row(self, number: int) -> range:
        """The items of a row."""
        first = number * self.columns
        return range(self._begin(first), self._begin(min(first + self.columns, self.shards)))

    def mixed_column(self, number: int) -> NDArray[np.int64]:
        """The item at each place of a column, int64 (n,); items and places are counted in the column, from 0."""
        return self._mixed(0, number, sum(map(len, self.column(number))))

    def mixed_row(self, number: int) -> NDArray[np.int64]:
        """The item at each place of a row, as in `mixed_column`."""
        return self._mixed(1, number, len(self.row(number)))

    def _mixed(self, axis: int, number: int, items: int) -> NDArray[np.int64]:
        return np.random.default_rng([self.seed, axis, number]).permutation(items)

    def _begin(self, part: int) -> int:
        return -(-part * self.items // self.shards)


def grid_shuffle(problem: Problem, *, shards: int) -> Order:
    """The order that the module describes. There are at most as many parts as items."""
    grid = Grid(problem.items, max(1, min(shards, problem.items)), problem.seed)
    mixed = np.empty(problem.items, np.int64)
    for number in range(grid.columns):
        items = np.concatenate([np.arange(part.start, part.stop) for part in grid.column(number)])
        mixed[items] = items[grid.mixed_column(number)]
    rows: Iterator[Order] = (
        mixed[grid.row(number).start : grid.row(number).stop][grid.mixed_row(number)]
        for number in range(grid.rows)
    )
    return np.concatenate(list(rows))


STRATEGY = Strategy("grid_shuffle", grid_shuffle, ShardOptions, sees_traits=False)
