"""Slow, obvious twins of the order kernels and of whole strategies: plain loops, dense rows. For tests only."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Values near 1 that differ by less are equal but for rounding.
TIE = 1e-9


def label_queues(labels: Sequence[int]) -> list[list[int]]:
    """The items of each label, in their order."""
    return [[item for item, of in enumerate(labels) if of == label] for label in sorted(set(labels))]


def round_robin(queues: list[list[int]]) -> list[int]:
    waiting = [list(queue) for queue in queues]
    out = []
    while any(waiting):
        out += [queue.pop(0) for queue in waiting if queue]
    return out


def largest_deficit_first(queues: list[list[int]], sizes: Sequence[int]) -> list[int]:
    """The first seed's formula, sizes by item; an emptied queue takes no further part."""
    waiting = [list(queue) for queue in queues]
    out: list[int] = []
    while any(waiting):
        left = [sum(sizes[item] for item in queue) for queue in waiting]
        gone = [sum(sizes[item] for item in out if item in queue) for queue in queues]
        deficits = {
            k: left[k] / max(sum(left), 1) - gone[k] / max(sum(gone), 1)
            for k in range(len(queues))
            if waiting[k]
        }
        best = max(deficits, key=lambda k: (deficits[k], -k))
        out.append(waiting[best].pop(0))
    return out


def token_share_greedy(labels: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """argmin |(T_c + l) - tau_c (S + l)| over all remaining items, in Python's exact whole numbers."""
    total = sum(lengths)
    share = {
        label: sum(n for n, of in zip(lengths, labels, strict=True) if of == label) for label in set(labels)
    }
    placed = dict.fromkeys(share, 0)
    remaining = set(range(len(lengths)))
    out = []
    while remaining:

        def deviation(item: int) -> tuple[int, int]:
            label, length = labels[item], lengths[item]
            return abs(
                (placed[label] + length) * total - share[label] * (sum(placed.values()) + length)
            ), item

        best = min(remaining, key=deviation)
        remaining.remove(best)
        placed[labels[best]] += lengths[best]
        out.append(best)
    return out


def bin_packing(labels: Sequence[int], lengths: Sequence[int], bin_size: int) -> list[int]:
    remaining = set(range(len(lengths)))
    out: list[int] = []
    while remaining:
        inside: set[int] = set()
        room = bin_size
        fits = remaining
        while fits:
            lacked = {item for item in fits if labels[item] not in inside}
            best = min(lacked or fits, key=lambda item: (-lengths[item], item))
            remaining.remove(best)
            out.append(best)
            inside.add(labels[best])
            room -= lengths[best]
            fits = {item for item in remaining if lengths[item] <= room}
    return out


def centred(rows: Floats, groups: Sequence[int]) -> Floats:
    """Rows (M, J) minus their group sums times the shares of the whole."""
    out = np.array(rows, np.float64)
    for group in set(groups):
        columns = np.flatnonzero(np.asarray(groups) == group)
        total = rows[:, columns].sum()
        if total > 0:
            share = rows[:, columns].sum(axis=0) / total
            out[:, columns] -= rows[:, columns].sum(axis=1, keepdims=True) * share
    return out


def sign_pass(items: Sequence[int], rows: Floats) -> list[int]:
    """Centred rows (M, J), with any further coordinates."""
    running = np.zeros(rows.shape[1])
    front: list[int] = []
    back: list[int] = []
    for item in items:
        if running @ rows[item] <= TIE:
            front.append(item)
            running += rows[item]
        else:
            back.append(item)
            running -= rows[item]
    return front + back[::-1]


def best_of_pool(items: Sequence[int], rows: Floats, pool: int) -> list[int]:
    """Centred rows (M, J), with any further coordinates."""
    stream = list(items)
    deviation = np.zeros(rows.shape[1])
    out = []
    while stream:
        squares = {item: float(((deviation + rows[item]) ** 2).sum()) for item in stream[:pool]}
        best = min(item for item, square in squares.items() if square <= min(squares.values()) + TIE)
        stream.remove(best)
        deviation += rows[best]
        out.append(best)
    return out
