"""Items in turns: the hot loop of `core.order.schedule`.

Letters: n items, B takers.

Each taker begins with half a mean item, as in Webster's method: a taker with a small share waits for its turn.
Guarantee: the sums of two takers, over their shares, differ by at most 1.5 times the largest item over the smallest
share. Equal items and shares give 0, 1, ..., B - 1, 0, 1, ...
Cost: O(n log B) time. Equal to the twin in `tests/twins/turns.py`.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Floats = NDArray[np.float64]


@kernel
def take_turns(sizes: Floats, share: Floats) -> NDArray[np.int64]:
    """The taker of each item, int64 (n,): the taker whose sum over its share is the least; of equal ones the first.

    sizes: float64 (n,) >= 0, in the order of the items, n above 0; share: float64 (B,) > 0.
    """
    half = 0.5 * sizes.mean()
    heap = [(half / share[taker], taker) for taker in range(len(share))]
    heapq.heapify(heap)
    out = np.empty(len(sizes), np.int64)
    for item in range(len(sizes)):
        reached, taker = heap[0]
        out[item] = taker
        heapq.heapreplace(heap, (reached + sizes[item] / share[taker], taker))
    return out
