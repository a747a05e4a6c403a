"""The layout of a map: stochastic gradient descent on UMAP's cross entropy (McInnes, Healy and Melville 2018,
algorithm 5).

Letters: n points, E edges. Twin: tests/twins/umap_layout.py.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NEGATIVES = 5
"""Random points that push the head of an edge away, each time the edge pulls."""

LONGEST_STEP = 4.0
"""Largest step of a point along an axis, at a rate of 1."""


@njit(cache=True, nogil=True)
def lay_out(
    xy: Floats, heads: Ints, tails: Ints, every: Floats, passes: int, a: float, b: float, seed: int
) -> None:
    """Moves the points xy (n, 2): edges pull their ends together, random points push the heads away.

    Reads heads and tails (E,), the ends of each edge, and every (E,): an edge pulls once in that many of all `passes`.
    The rate falls from 1 to 0. Points at distance d are alike by 1 / (1 + a d^2b). One thread; equal points do not
    push each other. O(pulls).
    """
    n = xy.shape[0]
    due = every.copy()
    state = np.uint64(seed)
    for at in range(passes):
        rate = 1.0 - at / passes
        for edge in range(heads.shape[0]):
            if due[edge] > at:
                continue
            due[edge] += every[edge]
            head = heads[edge]
            for draw in range(NEGATIVES + 1):
                other = tails[edge]
                if draw > 0:
                    # Knuth's MMIX generator; the upper bits are the random ones.
                    state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                    other = np.int64(state >> np.uint64(33)) % n
                x = xy[head, 0] - xy[other, 0]
                y = xy[head, 1] - xy[other, 1]
                square = x * x + y * y
                if square == 0.0:
                    continue
                power = square**b
                if draw == 0:
                    force = -2.0 * a * b * power / (square * (1.0 + a * power))
                else:
                    force = 2.0 * b / ((0.001 + square) * (1.0 + a * power))
                x = rate * min(max(force * x, -LONGEST_STEP), LONGEST_STEP)
                y = rate * min(max(force * y, -LONGEST_STEP), LONGEST_STEP)
                xy[head, 0] += x
                xy[head, 1] += y
                if draw == 0:
                    xy[other, 0] -= x
                    xy[other, 1] -= y
