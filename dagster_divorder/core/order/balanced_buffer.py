"""balanced_buffer: a buffer over a shuffle, or over a stream; it hands out the item that keeps the running mix nearest
to its target.

Letters: M items, C items in the buffer, J trait values, G groups.

A shuffle buffer hands out a random item; this one hands out the item that leaves the smallest deviation from the
target, as in `balanced`. The deviation covers about the last C / 2 items handed out: the buffer no longer holds items
that could make up for older ones.

Guarantee: an item leaves before 8 C later items. The same input and seed give the same order, however the input is
split into parts. Equal items go in random order.
Cost: O(C entries + J) an item; O(C entries + J) memory, whatever M is.
Source: the objective of Don't Shuffle, Optimize (f1, f3); buffers as in tf.data. Measurements:
docs/decisions/balanced-buffer.md.
Known weakness: a stretch of the input, longer than the buffer, that has only one value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from dagster_divorder.core.order.problem import Order, Problem, mix
from dagster_divorder.core.order.strategy import Strategy, StrategyOptions

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.order_buffer import Slots, Sums

MEMORY = 0.5
"""After this many times C items a deviation has decayed to 1 / e."""


class BalancedBufferOptions(StrategyOptions):
    buffer: int = Field(1024, ge=1)
    """Items in the buffer. More keep windows nearer to the mix, take more time an item, and let unseen features drift
    more."""


def keep(capacity: int) -> float:
    """Share of a deviation that remains one item later."""
    return max(0.0, 1.0 - 1.0 / (MEMORY * capacity))


def empty_slots(capacity: int, entries: int, groups: int, dims: int = 0) -> Slots:
    """A buffer of `capacity` free slots for items of at most `entries` entries."""
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
    """Sums of a buffer that has handed out nothing."""
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
    from dagster_divorder.core.kernels.order_buffer import BufferMix, pass_through

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
        BufferMix(problem.groups, problem.weights, target, -1, keep(capacity), problem.seed),
        empty_slots(capacity, int(np.diff(problem.indptr).max()), groups, problem.dense.shape[1]),
        sums,
        True,
        out,
    )
    return queue[out[:gone]]


STRATEGY = Strategy(
    "balanced_buffer", permute, BalancedBufferOptions, takes_coordinates=True, balances_norms=True, version=2
)
