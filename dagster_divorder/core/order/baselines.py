"""Strategies that others use or have published, to compare `balanced` with.

Letters: M items, K labels (values of group 0 in use).
Equal items come in random order, by the seed. The code of "Don't Shuffle, Optimize" is called TerRIFIC.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategy import Strategy, StrategyOptions

Ints = NDArray[np.int64]


def original(problem: Problem) -> Order:
    """The items in input order, blocks of the input included. O(M)."""
    return np.arange(problem.items)


def random(problem: Problem) -> Order:
    """A uniform shuffle, the baseline to beat: a prefix of t items strays by about sqrt(t (M - t) / M) items' norms."""
    return np.random.default_rng(problem.seed).permutation(problem.items)


class QueueOptions(StrategyOptions):
    within_cluster: Literal["random", "original"] = "random"
    """Order of the items of one label."""


def round_robin(problem: Problem, *, within_cluster: str) -> Order:
    """One item of each label in turn, in label order; empty labels are skipped. Small labels run out early, so the tail
    holds only the largest. O(M log M). Source: Diversity-Ordered Training."""
    items, starts = _queues(problem, within_cluster)
    sizes = np.diff(starts)
    turn = np.arange(len(items)) - starts[:-1].repeat(sizes)
    # Queues lie in label order and the sort is stable, so labels rise inside a round.
    return items[np.argsort(turn, kind="stable")]


def stratified(problem: Problem, *, within_cluster: str) -> Order:
    """The next item comes from the label that is furthest behind, counted in items. It is the greedy of
    Diversity-Ordered Training, equal to its float64 formula bit for bit. Each label's share stays within a few items of
    its share of all. But sequences count tokens: if labels differ in item length, batches stray further than in a
    shuffle. O(M K).
    """
    items, starts = _queues(problem, within_cluster)
    head, ends = starts[:-1].copy(), starts[1:]
    order = np.empty(problem.items, np.int64)
    for step in range(problem.items):
        deficit = (ends - head) / (problem.items - step) - (head - starts[:-1]) / max(step, 1)
        label = np.where(head < ends, deficit, -np.inf).argmax()
        order[step] = items[head[label]]
        head[label] += 1
    return order


def jittered(problem: Problem) -> Order:
    """Item j of a random permutation of label i gets the time (j + s_i) / n_i; items are sorted by time. n_i is the
    number of items of label i, s_i ~ U(0, 1) its random offset. A label's items are evenly spaced; tokens and other
    traits are ignored. O(M log M). Source: the 2-way jittered shuffle of Don't Shuffle, Optimize (TerRIFIC)."""
    generator = np.random.default_rng(problem.seed)
    shuffled = generator.permutation(problem.items)
    labels = problem.labels
    sizes = np.bincount(labels)
    offsets = generator.random(len(sizes))
    items = shuffled[np.argsort(labels[shuffled], kind="stable")]
    rank = np.arange(len(items)) - (np.cumsum(sizes) - sizes).repeat(sizes)
    stamps = (rank + offsets.repeat(sizes)) / sizes.repeat(sizes)
    return items[np.argsort(stamps, kind="stable")]


def token_share_greedy(problem: Problem) -> Order:
    """Idea 1 of Don't Shuffle, Optimize, exactly as published. The next of all remaining items is

        argmin over d of |(T_c + l_d) - tau_c (S + l_d)|,    c = label of d, l_d = its tokens,

    with T_c the tokens of label c placed so far, S all tokens placed, tau_c the label's share of all tokens. Exact. It
    sees only the item's own label, so short items of labels on track go first; long items and labels that are behind
    come last. O(M K log M)."""
    shuffle = np.random.default_rng(problem.seed).permutation(problem.items)
    label, length = problem.labels[shuffle], problem.lengths[shuffle]
    by_length = np.lexsort((length, label))
    parts = np.split(by_length, np.flatnonzero(np.diff(label[by_length])) + 1)
    # Of each label the positions in the shuffle and the lengths of what is left, shortest first.
    items, lengths = [part.tolist() for part in parts], [length[part].tolist() for part in parts]
    tokens = [sum(of) for of in lengths]
    total, placed, all_placed = sum(tokens), [0] * len(parts), 0
    if max(tokens) == total:
        # Every item strays by 0 at every step.
        return shuffle
    order = np.empty(problem.items, np.int64)
    for step in range(problem.items):
        best: tuple[int, int, int, int] | None = None
        for number, left in enumerate(lengths):
            # The deviation rises in l: the nearest are the first item with 0 or more, and the last one below.
            enough = -((placed[number] * total - tokens[number] * all_placed) // (total - tokens[number]))
            above = bisect_left(left, enough)
            for at in (above - 1, above):
                if 0 <= at < len(left):
                    off = abs((placed[number] + left[at]) * total - tokens[number] * (all_placed + left[at]))
                    # Of equally long ones the first.
                    at = bisect_left(left, left[at])
                    if best is None or (off, items[number][at]) < best[:2]:
                        best = off, items[number][at], number, at
        assert best is not None
        _, order[step], number, at = best
        size = lengths[number].pop(at)
        del items[number][at]
        placed[number] += size
        all_placed += size
    return shuffle[order]


class ShardOptions(StrategyOptions):
    shards: int = Field(64, ge=1, le=1 << 24)
    """Contiguous parts of the items, of nearly equal size: more parts need less memory and mix less."""


def within_shard(problem: Problem, *, shards: int) -> Order:
    """Contiguous parts one after the other, each shuffled in itself, as when shards are loaded one at a time. The mix
    moves from shard to shard as in the input. O(M log M). Source: TokenShard, where the loss jumps at every shard."""
    shard = np.arange(problem.items) * shards // max(problem.items, 1)
    shuffled = np.random.default_rng(problem.seed).permutation(problem.items)
    return shuffled[np.argsort(shard[shuffled], kind="stable")]


def grid_shuffle(problem: Problem, *, shards: int) -> Order:
    """Contiguous parts laid out in a grid of about as many columns as rows; the items of each column are mixed, then
    those of each row. Every column and row has its own random numbers, so that one at a time needs to be in memory. As
    random as a shuffle. O(M + P). Source: TokenShard."""
    parts = max(1, min(shards, problem.items))
    columns = math.isqrt(parts - 1) + 1
    # Part p begins at the p-th P-th of the items; the last row of the grid may lack parts.
    part = np.repeat(np.arange(parts), np.diff(-(-np.arange(parts + 1) * problem.items // parts)))
    order = np.arange(problem.items)
    for axis, line in enumerate((part % columns, part // columns)):
        for number in range(int(line.max(initial=-1)) + 1):
            places = np.flatnonzero(line == number)
            mixed = np.random.default_rng([problem.seed, axis, number]).permutation(len(places))
            order[places] = order[places[mixed]]
    return order


class BufferOptions(StrategyOptions):
    buffer: int = Field(10_000, ge=1)
    """Items in the buffer: more need more memory, and break up longer blocks of the input."""


def buffer(problem: Problem, *, buffer: int) -> Order:
    """A buffer of items: as one enters, a random one leaves. No item moves forward by `buffer` places or more, so the
    mix moves as in the input, smoothed. O(M). Source: tf.data, webdataset, Hugging Face streaming."""
    size = min(buffer, problem.items)
    slots, order = list(range(size)), np.empty(problem.items, np.int64)
    for step, draw in enumerate(np.random.default_rng(problem.seed).random(problem.items).tolist()):
        slot = int(draw * len(slots))
        order[step], last = slots[slot], slots.pop() if size + step >= problem.items else size + step
        if slot < len(slots):
            slots[slot] = last
    return order


BASELINES = (
    Strategy("original", original, sees_traits=False),
    Strategy("random", random, sees_traits=False),
    Strategy("round_robin", round_robin, QueueOptions),
    Strategy("stratified", stratified, QueueOptions),
    Strategy("token_share_greedy", token_share_greedy),
    Strategy("jittered", jittered),
    Strategy("within_shard", within_shard, ShardOptions, sees_traits=False),
    Strategy("buffer", buffer, BufferOptions, sees_traits=False),
    Strategy("grid_shuffle", grid_shuffle, ShardOptions, sees_traits=False),
)


def _queues(problem: Problem, within_cluster: str) -> tuple[Ints, Ints]:
    """(items int64 (M,), starts int64 (K+1,)): items[starts[k]:starts[k+1]] is label k's queue."""
    labels = problem.labels
    starts = np.concatenate([[0], np.cumsum(np.bincount(labels))])
    if within_cluster == "original":
        return np.argsort(labels, kind="stable"), starts
    shuffle = np.random.default_rng(problem.seed).permutation(problem.items)
    return shuffle[np.argsort(labels[shuffle], kind="stable")], starts
