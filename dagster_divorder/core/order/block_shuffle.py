"""block_shuffle: the batches of another strategy's order, each kept whole, in random order.

Don't Shuffle, Optimize rearranges the batches of its greedy order so, lest training follow some bias of the greedy
(greedy_block_shuffle).
Guarantee: every aligned batch is one of that order; the last, partial block stays last, so that they stay aligned.
Cost: that of the other strategy.
Known weakness: prefixes of many batches stray like a shuffle of the batches' own small deviations, no longer held near
the mix; a window that is not aligned has parts of two batches that were not made for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategy import Options, Strategy, checked, one_of


class BlockOptions(Options):
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
    """Also takes the options of the strategy whose batches it shuffles, and looks at what that one looks at."""

    others: Mapping[str, Strategy]
    """The strategies whose batches it can shuffle, by name."""

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
    """The strategy that shuffles the batches of any of these."""
    function = partial(permute, others)
    return _BlockShuffle("block_shuffle", function, BlockOptions, reads=frozenset({"batch"}), others=others)
