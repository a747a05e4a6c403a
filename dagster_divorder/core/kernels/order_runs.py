"""Search among runs that empty one by one: runs 0..R-1 of rising length inside each label (see core/order/runs.py).

`below[r + 1]` leads to the nearest run at or below r that still has items, `above[r]` to the nearest at or above
it; both are union-find forests with path halving, near O(1) a search. The ends -1 and R are always open.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def root(forest: Ints, node: int) -> int:
    """The root above `node`. Writes `forest`: every other node on the way is hung up higher."""
    while forest[node] != node:
        forest[node] = forest[forest[node]]
        node = forest[node]
    return node


@njit(cache=True, nogil=True)
def open_at_or_below(below: Ints, r: int) -> int:
    """Nearest run <= r with items left, or -1. It may belong to an earlier label."""
    return root(below, r + 1) - 1


@njit(cache=True, nogil=True)
def take(r: int, head: Ints, first: Ints, below: Ints, above: Ints) -> int:
    """Place of the next item of run r, which loses it. Writes `head`; an emptied run leaves both forests."""
    place = head[r]
    head[r] += 1
    if head[r] == first[r + 1]:
        below[r + 1] = r
        above[r] = r + 1
    return place
