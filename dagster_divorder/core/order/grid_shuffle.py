"""grid_shuffle: `shards` contiguous parts in a grid, row by row; the items of each column mixed, then of each row.

The grid is as square as can be; its last row may be short. After the columns' pass an item stands anywhere in its
column, after the rows' pass anywhere in the row that it came to.
Guarantee: two passes, and no more than one column or row of shards in memory, about M / sqrt(shards) items; every item
may come to every place, each row takes from each column as many items as it has places there.
Cost: two sorts, O(M log M). Source: grid shuffling (TokenShard; the third seed).
Known weakness: random like a shuffle, and no better: batches differ from the whole's mix by chance. Two items of one
row in the input meet less often than under a shuffle.
"""

import math

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.shards import shard_of, shuffled_within


def place(problem: Problem) -> Order:
    random = np.random.default_rng(problem.seed)
    shard = shard_of(problem.items, problem.shards)
    columns = math.ceil(math.sqrt(problem.shards))
    mixed = shuffled_within(np.arange(problem.items), shard % columns, random)
    return shuffled_within(mixed, shard // columns, random)
