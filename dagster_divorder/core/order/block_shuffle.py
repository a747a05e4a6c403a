"""block_shuffle: the batches of another strategy's order, each kept whole, in random order.

A block is `batch` items of the order by `block_strategy`, `balanced` by default. The second seed rearranges the batches
of its greedy order so, lest training follow some bias of the greedy (greedy_block_shuffle).
Guarantee: every aligned batch is one of that order; the last, partial block stays last, so that they stay aligned.
Cost: that of the other strategy. Source: the second seed.
Known weakness: prefixes of many batches stray like a shuffle of the batches' own small deviations, no longer held near
the mix; a window that is not aligned has parts of two batches that were not made for each other.
"""

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem


def place(problem: Problem) -> Order:
    # The registry holds this strategy too, and so imports it.
    from dagster_divorder.core.order.strategies import STRATEGIES

    order = STRATEGIES[problem.block_strategy](problem)
    blocks = problem.items // problem.batch
    whole = order[: blocks * problem.batch].reshape(blocks, problem.batch)
    shuffled = np.random.default_rng(problem.seed).permutation(blocks)
    return np.concatenate([whole[shuffled].ravel(), order[whole.size :]])
