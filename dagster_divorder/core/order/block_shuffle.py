"""block_shuffle: the batches of another strategy's order in random order, each kept whole.

Don't Shuffle, Optimize shuffles the batches of its greedy order like this (greedy_block_shuffle), so that training does
not follow a bias of the greedy.
Guarantee: every aligned batch is a batch of that order. The last, partial block stays last, so that all stay aligned.
Cost: the other strategy's.
Known weakness: in an order of several sections only the first one begins at a batch. Prefixes of many batches stray
like a shuffle of the batches' small deviations. A window that is not aligned joins parts of two batches that were not
balanced together.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategy import Nesting, Strategy, StrategyOptions


class BlockOptions(StrategyOptions):
    block_strategy: str = "balanced"
    """The strategy whose order is cut into blocks of `batch` items; its options may be given too."""


def permute(
    others: Mapping[str, Strategy], problem: Problem, *, block_strategy: str, **options: Any
) -> Order:
    order = others[block_strategy].with_options(**options).permute(problem)
    blocks = problem.items // problem.batch
    whole = order[: blocks * problem.batch].reshape(blocks, problem.batch)
    shuffled = np.random.default_rng(problem.seed).permutation(blocks)
    return np.concatenate([whole[shuffled].ravel(), order[whole.size :]])


def shuffling_batches_of(others: Mapping[str, Strategy]) -> Strategy:
    """`block_shuffle` with `others` as its possible inner strategies, by name."""
    function = partial(permute, others)
    return Nesting(
        "block_shuffle",
        function,
        BlockOptions,
        reads=frozenset({"batch"}),
        others=others,
        inner="block_strategy",
    )
