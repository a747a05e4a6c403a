"""A different order for each epoch; an item's places in successive epochs are nearly a whole epoch apart.

Letters: M items, E epochs, B blocks.

The first epoch is the strategy's own order, cut into B blocks. Every later epoch has the same blocks in the same order.
Each block begins with a random item; the strategy orders the others by the block's own mix.
Guarantee: an item comes again after (1 - 1 / B) M places or more, less a batch of rounding. A window across the
boundary strays no more than a window inside. Cost: the strategy E times.
Source: the epoch boundary of Diversity-Ordered Training, where the loss dips and the gradient's norm spikes.
Known weakness: a block holds the same items in every epoch. Later epochs of `original` are shuffles within blocks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.items import Items
from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategies import make_problem
from dagster_divorder.core.order.strategy import Strategy

BLOCKS = 16
"""B: with more blocks an item comes again later, and meets fewer others."""

BLOCK = 32
"""Fewest items of a block: a corpus with fewer than BLOCKS x BLOCK items has fewer blocks."""


@dataclass(frozen=True, eq=False)
class Epochs:
    """The orders of all epochs, each computed on request. first: int64 (M,), the first epoch's."""

    problem: Problem
    strategy: Strategy
    first: Order

    def order(self, epoch: int) -> Order:
        """The permutation of an epoch, counted from 0: int64 (M,)."""
        if epoch == 0 or not len(self.first):
            return self.first
        # Blocks of nearly equal size, and in whole batches if a block has four or more.
        items, batch = self.problem.items, self.problem.batch
        number = max(1, min(BLOCKS, items // BLOCK))
        bounds = np.arange(number + 1) * items // number
        if items >= 4 * batch * number:
            bounds[1:-1] = np.rint(bounds[1:-1] / batch).astype(np.int64) * batch
        seeds = np.random.SeedSequence([self.problem.seed, epoch]).generate_state(len(bounds)).tolist()
        blocks = (bounds[:-1].tolist(), bounds[1:].tolist(), seeds)
        with ThreadPoolExecutor(2) as threads:
            return np.concatenate(list(threads.map(self._order_block, *blocks)))

    def _order_block(self, begin: int, end: int, seed: int) -> Order:
        # A fixed first item gives deterministic strategies another order, too.
        items = np.random.default_rng(seed).permutation(self.first[begin:end])
        rest = items[1:]
        if len(rest) > 1:
            rest = rest[self.strategy.permute(replace(self.problem.part(rest), seed=seed))]
        return np.append(items[:1], rest)


def plan_epochs(items: Items, *, first: Order | None = None, **arguments: Any) -> Epochs:
    """A plan for any number of epochs.

    first: int64 (M,), the first epoch; by default the strategy's order. items, arguments: as in `core.order.order`.

    Raises:
        InputError: an argument cannot be used.
    """
    problem, strategy = make_problem(items, **arguments)
    if first is None:
        first = strategy.permute(problem) if problem.items else np.zeros(0, np.int64)
    return Epochs(problem, strategy, first)


def epoch_orders(items: Items, epochs: int, **arguments: Any) -> NDArray[np.int64]:
    """Permutations of the M items, int64 (E, M), one a row. Row e is the same for any number of epochs above e.
    Arguments and errors: as in `plan_epochs`."""
    plan = plan_epochs(items, **arguments)
    return np.stack([plan.order(epoch) for epoch in range(epochs)])
