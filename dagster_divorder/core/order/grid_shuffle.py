"""grid_shuffle: lays contiguous parts out in a grid, mixes the items of each column, then those of each row.

Letters: M items, P parts (shards), C columns, the root of P, rounded up.

Guarantee: every item can reach every place. Each column and row has its own random numbers, so that one of them at a
time, about M / C items, needs to be in memory.
Cost: O(M + P). As random as a shuffle, no better. Source: TokenShard (On Shuffling Tokens).
"""

from __future__ import annotations

import math

import numpy as np

from dagster_divorder.core.order.baselines import ShardOptions
from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategy import Strategy


def grid_shuffle(problem: Problem, *, shards: int) -> Order:
    """The order that the module describes. There are at most as many parts as items."""
    parts = max(1, min(shards, problem.items))
    columns = math.isqrt(parts - 1) + 1
    # Part p begins at the p-th P-th of the items; the last row of the grid may lack parts.
    part = np.repeat(np.arange(parts), np.diff(-(-np.arange(parts + 1) * problem.items // parts)))
    order = np.arange(problem.items)
    for axis, line in enumerate((part % columns, part // columns)):
        for number in range(int(line.max(initial=-1)) + 1):
            places = np.flatnonzero(line == number)
            mixed = np.random.default_rng([problem.seed, axis, number]).permutation(len(places))
            order[places] = order[places[mixed]]
    return order


STRATEGY = Strategy("grid_shuffle", grid_shuffle, ShardOptions, sees_traits=False)
