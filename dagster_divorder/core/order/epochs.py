"""A different order for each epoch; an item's places in successive epochs are nearly a whole epoch apart.

Letters: M items, E epochs, B blocks.

The first epoch is the strategy's own order (with `copies`, spread), cut into B blocks. Every later epoch has the same
blocks in the same order. Each block begins with a random item; the strategy reorders the others from the totals so far.
At the end of an epoch the totals are back at the whole's mix. If every cell has the mix (`spread`), each block is a
cell or a part of one and is ordered by its own mix.
A strategy that follows a score passes its schedule again in every epoch, with other random numbers, or once in all
epochs together. The rest of this docstring is about the other strategies.
Guarantee: an item comes again after (1 - 1 / B) M places or more, less a batch of rounding. Copies keep their distances
across the boundary as inside, less a block. A window across the boundary joins two orders that keep the mix, so it
strays no more than a window inside.
Cost: the strategy E times. Source: the epoch boundary of Diversity-Ordered Training, where the loss dips and the
gradient's norm spikes.
Known weakness: a block holds the same items in every epoch, so its batches always come from the same B-th of the items.
Later epochs of `original` are shuffles within blocks, not the input order. Across the first boundary copies of frozen
items are only about a quarter of their even distance apart, and no frozen item keeps its place in its block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.order.arguments import OrderTask, frozen_items, make_task
from dagster_divorder.core.order.cells import cell_bounds, order_in_cells
from dagster_divorder.core.order.problem import Order
from dagster_divorder.core.order.spread import Times, spread_along, spread_rest
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

BLOCKS = 16
"""B: with more blocks an item comes again later, and meets fewer others."""

BLOCK = 32
"""Fewest items of a block: a corpus with fewer than BLOCKS x BLOCK items has fewer blocks."""


@dataclass(frozen=True, eq=False)
class Epochs:
    """The orders of all epochs, each computed on request. Holds the items and the first epoch's order.

    first: int64 (M,). bounds: int64 (B + 1,), where blocks begin and end. keep: bool (M,), by item: whether it is a
    copy that keeps its place. own_mix: each block has the whole's mix.
    """

    task: OrderTask
    first: Order
    bounds: NDArray[np.int64]
    keep: NDArray[np.bool_]
    own_mix: bool
    copies: ArrayLike | Times

    def order(self, epoch: int) -> Order:
        """The permutation of an epoch, counted from 0: int64 (M,)."""
        if epoch == 0:
            return self.first
        problem = self.task.problem
        if self.task.strategy.follows_score:
            every, nothing = np.arange(problem.items), np.zeros(0, np.int64)
            again = OrderTask(
                replace(problem, seed=epoch_seed(problem.seed, epoch)), self.task.strategy, nothing, every
            )
            return spread_rest(again, self.copies).order
        return order_in_cells(
            problem,
            self.task.strategy,
            self.first,
            self.bounds,
            keep=self.keep,
            anew=True,
            own_mix=self.own_mix,
            draw=epoch,
        )


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of the schedule in an epoch above 0; every epoch starts the schedule again."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


def plan_epochs(
    counts: csr_matrix | csr_array,
    groups: ArrayLike,
    *,
    copies: ArrayLike | Times | None = None,
    **options: Any,
) -> Epochs:
    """A plan for any number of epochs; arguments and errors as in `epoch_orders`."""
    task = make_task(counts, groups, **options)
    problem = task.problem
    copies = np.arange(problem.items) if copies is None else copies
    spread = spread_rest(task, copies)
    # As many as the cells that keep copies apart: copies would meet in larger blocks.
    blocks = max(1, min(BLOCKS, problem.items // BLOCK), spread.cells)
    bounds = cell_bounds(problem.items, blocks, problem.batch)
    mixed = None if task.frozen.size else spread.mixed
    if mixed is not None:
        at = np.linspace(0, spread.cells, -(-blocks // spread.cells) * spread.cells + 1)
        bounds = np.interp(at, np.arange(spread.cells + 1), mixed).astype(np.int64)
    first = np.concatenate([task.frozen, spread.order])
    return Epochs(task, first, bounds, spread.kept, own_mix=mixed is not None, copies=copies)


def epoch_orders(
    counts: csr_matrix | csr_array,
    groups: ArrayLike,
    epochs: int,
    *,
    copies: ArrayLike | Times | None = None,
    together: bool = False,
    **options: Any,
) -> NDArray[np.int64]:
    """Permutations of the M items, int64 (E, M), one a row.

    copies: int (M,), as in `core.order.spread.spread_order`; by default no item is a copy. counts, groups, options: as
        in `core.order.order`; `frozen` is the beginning of the first epoch.
    together: a strategy that follows a score passes its schedule once in all epochs; other strategies ignore this. The
        rows are then parts of one order that holds every item E times, in the same window of the schedule or in other
        folds. `frozen` may hold an item up to E times.

    The same arguments give the same bytes. Unless `together`, row e is the same for any number of epochs above e.

    Raises:
        InputError: an argument cannot be used.
    """
    if epochs < 1:
        raise InputError(f"epochs is {epochs}; expected 1 or more")
    if together:
        frozen = options.pop("frozen", None)
        task = make_task(counts, groups, **options)
        if task.strategy.follows_score:
            problem, consumed = task.problem, frozen_items(frozen, task.problem.items, epochs)
            repeats = epochs - np.bincount(consumed, minlength=problem.items)
            copies = np.arange(problem.items) if copies is None else copies
            order = spread_along(problem, task.strategy, copies, repeats, consumed=consumed)
            return np.concatenate([consumed, order]).reshape(epochs, -1)
        options["frozen"] = frozen
    plan = plan_epochs(counts, groups, copies=copies, **options)
    out = np.empty((epochs, len(plan.first)), np.int64)
    for epoch in range(epochs):
        out[epoch] = plan.order(epoch)
    return out
