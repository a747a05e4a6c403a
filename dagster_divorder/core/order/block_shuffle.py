"""block_shuffle: the batches of another strategy's order, each kept whole, in random order.

Don't Shuffle, Optimize shuffles the batches of its greedy order in this way (greedy_block_shuffle), lest training
follow a bias of the greedy.
Guarantee: every aligned batch is a batch of that order; the last, partial block stays last, so that all stay aligned.
Cost: that of the other strategy.
Known weakness: nothing keeps prefixes of many batches near the mix; they stray like a shuffle of the batches' own small
deviations. A window that is not aligned has parts of two batches that were not balanced together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategy import Strategy, StrategyOptions, checked, one_of


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


@dataclass(frozen=True, kw_only=True)
class _BlockShuffle(Strategy):
    """Takes the options of the inner strategy too, and depends on all that the inner strategy depends on."""

    others: Mapping[str, Strategy]
    """The possible inner strategies, by name."""

    def option_names(self, given: Mapping[str, Any]) -> list[str]:
        own = super().option_names(given)
        block_strategy = given.get("block_strategy", BlockOptions().block_strategy)
        return [*own, *self._inner(block_strategy).option_names(given)]

    def _bound(self, given: Mapping[str, Any]) -> Strategy:
        own = checked(BlockOptions, {key: given[key] for key in BlockOptions.model_fields if key in given})
        others = {key: value for key, value in given.items() if key not in BlockOptions.model_fields}
        inner = self._inner(own.block_strategy).with_options(**others)
        return replace(
            self,
            options={**own.model_dump(), **inner.options},
            takes_coordinates=inner.takes_coordinates,
            balances_norms=inner.balances_norms,
            reads=self.reads | inner.reads,
            version=inner.version,
        )

    def _inner(self, name: str) -> Strategy:
        return self.others[one_of("block_strategy", name, self.others)]


def shuffling_batches_of(others: Mapping[str, Strategy]) -> Strategy:
    """`block_shuffle` with `others` as its possible inner strategies, by name."""
    function = partial(permute, others)
    return _BlockShuffle("block_shuffle", function, BlockOptions, reads=frozenset({"batch"}), others=others)
