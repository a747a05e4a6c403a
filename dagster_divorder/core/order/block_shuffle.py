"""block_shuffle: the batches of `balanced`'s order, each kept whole, in random order.

A block is `batch` items. The second seed rearranges the batches of its greedy order so, lest training follow some bias
of the greedy (greedy_block_shuffle).
Guarantee: every aligned batch is one of `balanced`'s; the last, partial block stays last, so that they stay aligned.
Cost: that of `balanced`. Source: the second seed.
Known weakness: prefixes of many batches stray like a shuffle of the batches' own small deviations, no longer held near
the mix; a window that is not aligned has parts of two batches that were not made for each other.
"""

import numpy as np

from dagster_divorder.core.order import balanced
from dagster_divorder.core.order.problem import Order, Problem


def place(problem: Problem) -> Order:
    order = balanced.place(problem)
    blocks = problem.items // problem.batch
    whole = order[: blocks * problem.batch].reshape(blocks, problem.batch)
    shuffled = np.random.default_rng(problem.seed).permutation(blocks)
    return np.concatenate([whole[shuffled].ravel(), order[whole.size :]])
