"""within_shard: each of `shards` contiguous parts shuffled in itself, one part after the other.

What is done where a corpus is larger than memory and shards are loaded one at a time: a baseline, not advice.
Guarantee: no item leaves its shard; inside, every order is equally likely. Memory in use: one shard.
Cost: one sort, O(M log M). Source: the third seed, where it makes the loss jump at every shard.
Known weakness: the mix moves from shard to shard as it does in the input. Of a corpus sorted by source, whole stretches
of training are of one source.
"""

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.shards import shard_of, shuffled_within


def place(problem: Problem) -> Order:
    parts = shard_of(problem.items, problem.shards)
    return shuffled_within(np.arange(problem.items), parts, np.random.default_rng(problem.seed))
