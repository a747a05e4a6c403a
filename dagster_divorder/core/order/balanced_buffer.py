"""balanced_buffer: a buffer over a shuffle, or over a stream, that hands out the item which keeps the running mix
nearest to its target.

Letters: M items, C items held, J trait values, G groups.

A shuffle buffer hands out a random one of the items that it holds; this one the item after which the deviation from the
target is least, as in `balanced`. What is handed out is measured over the last C / 2 items or so: a debt that is older
cannot be paid, as the items that would pay it are not held.

Guarantee: an item goes before 8 C others that came after it have gone; the same input and seed give the same order,
whatever the parts in which it comes. Equal items go in random order.
Cost: O(C entries + J) an item; O(C entries + J) memory, whatever M is.
Source: the objective of Don't Shuffle, Optimize (f1, f3); buffers as in tf.data. What was measured:
docs/decisions/balanced-buffer.md.
Known weakness: an input that stays with one value for longer than the buffer is long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from dagster_divorder.core.order.problem import Order, Problem, mix
from dagster_divorder.core.order.strategy import Options, Strategy

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.order_buffer import Slots, Sums

MEMORY = 0.5
"""After so many times C items a deviation has gone down to 1 / e."""


class BalancedBufferOptions(Options):
    buffer: int = Field(1024, ge=1)
    """Items held: nearer to the mix as it rises, more time an item, and more drift of what the order does not see."""


def keep(capacity: int) -> float:
    """What is left of a deviation after one more item."""
    return max(0.0, 1.0 - 1.0 / (MEMORY * capacity))


def empty_slots(capacity: int, entries: int, groups: int, dims: int = 0) -> Slots:
    """A buffer of `capacity` free slots for items of so many entries at most."""
    from dagster_divorder.core.kernels.order_buffer import Slots

    return Slots(
        number=np.zeros(capacity, np.int64),
        entries=np.zeros(capacity, np.int32),
        value=np.zeros((capacity, entries), np.int32),
        amount=np.zeros((capacity, entries)),
        lengths=np.zeros((capacity, groups)),
        dense=np.zeros((capacity, dims)),
        norm=np.full(capacity, -1, np.int32),
        single=np.zeros(capacity, bool),
    )


def empty_sums(values: int, dims: int = 0) -> Sums:
    """Of a buffer through which nothing has passed."""
    from dagster_divorder.core.kernels.order_buffer import Sums

    return Sums(
        deviation=np.zeros(values),
        dense=np.zeros(dims),
        seen=np.zeros(values),
        held=np.zeros(values),
        norms=np.zeros(2),
        counts=np.zeros(2, np.int64),
    )


def permute(problem: Problem, *, buffer: int) -> Order:
    from dagster_divorder.core.kernels.order_buffer import Mix, pass_through

    values, groups = len(problem.groups), len(problem.weights)
    capacity = min(buffer, problem.items)
    target = mix(problem.whole.values, problem.groups)
    sums = empty_sums(values, problem.dense.shape[1])
    placed = np.bincount(problem.groups, problem.placed.values, groups)
    sums.deviation[:] = problem.placed.values - target * placed[problem.groups]
    sums.dense[:] = problem.placed.dense
    queue = np.random.default_rng(problem.seed).permutation(problem.items)
    out = np.empty(problem.items + capacity, np.int64)
    gone = pass_through(
        queue,
        problem.indptr,
        problem.indices,
        problem.data,
        problem.dense,
        Mix(problem.groups, problem.weights, target, -1, keep(capacity), problem.seed),
        empty_slots(capacity, int(np.diff(problem.indptr).max()), groups, problem.dense.shape[1]),
        sums,
        True,
        out,
    )
    return queue[out[:gone]]


STRATEGY = Strategy(
    "balanced_buffer", permute, BalancedBufferOptions, takes_coordinates=True, balances_norms=True
)
