"""The streaming buffer of `buffer`."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def through_buffer(draws: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Items 0..M-1 through a buffer of `size` places, int64 (M,): draws (M,), in [0, 1), say which one leaves.

    At step t the item in place floor(draws[t] x items held) leaves and the next one takes its place; once none is left
    to enter, the last one held does. O(M) time, O(size) scratch.
    """
    held = np.arange(size)
    out = np.empty(draws.shape[0], np.int64)
    coming = size
    filled = size
    for t in range(draws.shape[0]):
        i = int(draws[t] * filled)
        out[t] = held[i]
        if coming < draws.shape[0]:
            held[i] = coming
            coming += 1
        else:
            filled -= 1
            held[i] = held[filled]
    return out
