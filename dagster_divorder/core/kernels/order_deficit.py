"""The first seed's greedy over label queues, for `stratified` (sizes 1) and `token_deficit` (sizes in tokens)."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def largest_deficit_first(starts: Ints, sizes: Ints) -> Ints:
    """Places in the queues, int64 (M,), in the order taken. Label k's queue is starts[k]:starts[k+1].

    Per step, for each label whose queue is not empty, in float64:
        deficit_k = remaining_k / max(remaining, 1) - placed_k / max(placed, 1),   the largest goes next
    (of equal ones the first), with sums of `sizes` (int64, in queue order) as remaining and placed.
    O(M K) time, O(K) scratch.
    """
    labels = starts.shape[0] - 1
    head = starts[:-1].copy()
    left = np.zeros(labels, np.int64)
    placed = np.zeros(labels, np.int64)
    for k in range(labels):
        for i in range(starts[k], starts[k + 1]):
            left[k] += sizes[i]
    all_left = left.sum()
    all_placed = 0
    out = np.empty(sizes.shape[0], np.int64)
    for t in range(out.shape[0]):
        best = -1
        largest = 0.0
        for k in range(labels):
            if head[k] < starts[k + 1]:
                deficit = left[k] / max(all_left, 1) - placed[k] / max(all_placed, 1)
                if best < 0 or deficit > largest:
                    best = k
                    largest = deficit
        out[t] = head[best]
        size = sizes[head[best]]
        head[best] += 1
        left[best] -= size
        all_left -= size
        placed[best] += size
        all_placed += size
    return out
