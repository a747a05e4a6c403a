"""One walk over the sparse rows for what strategies with one label an item need."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def largest_and_sum(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[Any],
    wanted: NDArray[np.bool_],
    sums: NDArray[Any],
) -> NDArray[np.int32]:
    """out[s] = argmax over the wanted columns stored in row s (the first of equal ones); sums[s] = their sum.

    Reads all, writes `sums` (M,) and the result int32 (M,). A row with none gets the first wanted column. O(nnz + J).
    """
    first = 0
    while not wanted[first]:
        first += 1
    items = indptr.shape[0] - 1
    out = np.full(items, first, np.int32)
    for s in range(items):
        largest = data.dtype.type(0)
        found = False
        for k in range(indptr[s], indptr[s + 1]):
            if wanted[indices[k]]:
                sums[s] += data[k]
                if not found or data[k] > largest:
                    largest = data[k]
                    out[s] = indices[k]
                    found = True
    return out
