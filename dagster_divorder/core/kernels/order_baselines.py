"""Hot loops of the baseline strategies (core/order/baselines.py).

Letters: M items, K labels, R runs: items of one label and length. Whole numbers and float64, one thread.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]


@kernel
def through_buffer(draws: NDArray[np.float64], size: int) -> Ints:
    """Items 0..M-1 in the order in which they leave a buffer of `size`, int64 (M,). draws: (M,), in [0, 1), choose the
    items.

    At step t slot floor(draws[t] x filled slots) is emptied and the next item takes it; when all items have entered,
    the last filled slot's item does. O(M) time, O(size) scratch.
    """
    slots = np.arange(size)
    out = np.empty(draws.shape[0], np.int64)
    coming = size
    filled = size
    for t in range(draws.shape[0]):
        i = int(draws[t] * filled)
        out[t] = slots[i]
        if coming < draws.shape[0]:
            slots[i] = coming
            coming += 1
        else:
            filled -= 1
            slots[i] = slots[filled]
    return out


@kernel
def largest_deficit_first(starts: Ints) -> Ints:
    """Positions in the queues, int64 (M,), in the order in which they are taken. Label k's queue is
    starts[k]:starts[k+1].

    At every step the label with the largest deficit goes next, in float64; of equal ones the first. Empty queues are
    skipped.
        deficit_k = remaining_k / max(remaining, 1) - placed_k / max(placed, 1), counted in items.
    O(M K) time, O(K) scratch.
    """
    labels = starts.shape[0] - 1
    head = starts[:-1].copy()
    items = starts[-1] - starts[0]
    out = np.empty(items, np.int64)
    for t in range(items):
        best = -1
        largest = 0.0
        for k in range(labels):
            if head[k] < starts[k + 1]:
                deficit = (starts[k + 1] - head[k]) / (items - t) - (head[k] - starts[k]) / max(t, 1)
                if best < 0 or deficit > largest:
                    best = k
                    largest = deficit
        out[t] = head[best]
        head[best] += 1
    return out


# Runs 0..R-1 empty one by one. `below[r + 1]` leads to the nearest run at or below r that has items left, `above[r]` to
# the nearest at or above r. Both are union-find forests with path halving, near O(1) a search. The ends -1 and R never
# empty.


@kernel
def root(forest: Ints, node: int) -> int:
    """The root above `node`. Writes `forest`: shortens the path by halving."""
    while forest[node] != node:
        forest[node] = forest[forest[node]]
        node = forest[node]
    return node


@kernel
def take(r: int, head: Ints, first: Ints, below: Ints, above: Ints) -> int:
    """Takes the next item of run r and returns its position. Writes `head`; an empty run leaves both forests."""
    position = head[r]
    head[r] += 1
    if head[r] == first[r + 1]:
        below[r + 1] = r
        above[r] = r + 1
    return position


@kernel
def largest_that_fits(items: Ints, first: Ints, lengths: Ints, of_label: Ints, bin_size: int) -> Ints:
    """The order of `bin_packing`, int64 (M,). First four arguments: `core.order.baselines.ItemRuns`, not written.

    An empty bin takes the largest remaining item. An open bin takes the largest fitting item of a label it lacks, else
    the largest fitting item, else it closes. `cursor[k]` is label k's largest run with items that fits the open bin
    (below of_label[k]: none). Room only shrinks while a bin is open, so cursors only fall. O(M (K + log M)) time, O(M)
    memory.
    """
    runs = lengths.shape[0]
    labels = of_label.shape[0] - 1
    below, above = np.empty(runs + 1, np.int64), np.empty(runs + 1, np.int64)
    for r in range(runs + 1):
        below[r] = above[r] = r
    head = first[:-1].copy()
    cursor = np.empty(labels, np.int64)
    in_bin = np.zeros(labels, np.int64)
    out = np.empty(items.shape[0], np.int64)
    serial = 0
    room = -1
    t = 0
    while t < out.shape[0]:
        if room < 0:
            serial += 1
            for k in range(labels):
                cursor[k] = of_label[k + 1] - 1
        best = best_label = int(np.int64(-1))  # Not a literal: `take` would be compiled for it too.
        best_lacked = False
        for k in range(labels):
            if cursor[k] >= of_label[k] and room >= 0 and lengths[cursor[k]] > room:
                # The last run below the cursor that fits.
                fits, cursor[k] = of_label[k], cursor[k] - 1
                while fits <= cursor[k]:
                    middle = (fits + cursor[k]) // 2
                    if lengths[middle] <= room:
                        fits = middle + 1
                    else:
                        cursor[k] = middle - 1
            if cursor[k] < of_label[k]:
                continue
            r = cursor[k] = root(below, cursor[k] + 1) - 1
            if r < of_label[k]:
                continue
            lacked = in_bin[k] < serial
            if best < 0 or lacked > best_lacked:
                better = True
            elif lacked < best_lacked:
                better = False
            else:
                better = lengths[r] > lengths[best] or (
                    lengths[r] == lengths[best] and items[head[r]] < items[head[best]]
                )
            if better:
                best, best_lacked, best_label = r, lacked, k
        if best < 0:
            room = -1
            continue
        out[t] = items[take(best, head, first, below, above)]
        t += 1
        in_bin[best_label] = serial
        room = (bin_size if room < 0 else room) - lengths[best]
    return out


MOST_TOKENS = 1 << 51
"""Total below which `divide` is exact."""


@kernel
def divide(a: int, b: int, total: int) -> tuple[int, int]:
    """Quotient and remainder of a b / total, for 0 <= a, b <= total < MOST_TOKENS.

    The float64 quotient is below 2**51 and has two roundings of 2**-53 each, so its error is at most a half, and at
    most one once rounded down. The products wrap around 2**64; their difference, in [-total, 2 total), is exact.
    """
    quotient = int(float(a) * float(b) / float(total))
    remainder = a * b - quotient * total
    if remainder < 0:
        return quotient - 1, remainder + total
    if remainder >= total:
        return quotient + 1, remainder - total
    return quotient, remainder


@kernel
def nearest_to_share(items: Ints, first: Ints, lengths: Ints, of_label: Ints) -> Ints:
    """The order of `token_share_greedy`, int64 (M,). Arguments: `core.order.baselines.ItemRuns`, not written.

    With W all tokens, W_c the tokens of label c, S and T_c the placed ones of both, an item of l tokens of label c
    strays by |T_c + l - W_c (S + l) / W|: a whole number and a fraction of W, compared exactly. The signed value rises
    in l, so a label's best item is the last with a value below 0, or the first with 0 or more. If one label has all
    tokens, every item strays by 0 at every step, and items go in input order. Fewer than MOST_TOKENS tokens.
    O(M K log R) time, O(M) memory.
    """
    runs = lengths.shape[0]
    labels = of_label.shape[0] - 1
    below = np.arange(runs + 1)
    above = np.arange(runs + 1)
    head = first[:-1].copy()
    tokens = np.zeros(labels, np.int64)
    for k in range(labels):
        for r in range(of_label[k], of_label[k + 1]):
            tokens[k] += lengths[r] * (first[r + 1] - first[r])
    total = tokens.sum()
    if tokens.max() == total:
        return np.arange(items.shape[0])
    placed = np.zeros(labels, np.int64)
    all_placed = 0
    out = np.empty(items.shape[0], np.int64)
    for t in range(out.shape[0]):
        best = best_label = -1
        least = least_part = 0
        for k in range(labels):
            start, end = of_label[k], of_label[k + 1]
            # Runs start..rise-1 are below the label's share.
            rise, stop = start, end
            while rise < stop:
                middle = (rise + stop) // 2
                whole, part = divide(tokens[k], all_placed + lengths[middle], total)
                beyond = placed[k] + lengths[middle] - whole
                if beyond < 0 or (beyond == 0 and part > 0):
                    rise = middle + 1
                else:
                    stop = middle
            for r in (root(below, rise) - 1, root(above, rise)):
                if r < start or r >= end:
                    continue
                whole, part = divide(tokens[k], all_placed + lengths[r], total)
                beyond = placed[k] + lengths[r] - whole
                # |beyond - part / W| as a whole number and a part of W.
                if beyond > 0 and part > 0:
                    beyond, part = beyond - 1, total - part
                beyond = abs(beyond)
                if (
                    best < 0
                    or beyond < least
                    or (beyond == least and part < least_part)
                    or (beyond == least and part == least_part and items[head[r]] < items[head[best]])
                ):
                    best, best_label, least, least_part = r, k, beyond, part
        out[t] = items[take(best, head, first, below, above)]
        placed[best_label] += lengths[best]
        all_placed += lengths[best]
    return out
