"""Vectors of length 1.

Letters: n vectors, D dims.
Guarantee: a vector's bytes depend on that vector alone, whatever the batch. Cost: O(n D), BLOCK numbers of scratch.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 20

NO_DIRECTION = 1e-6
"""A vector nearer to the centre than this share of the centre's length has rounding noise for a direction."""


def unit_rows(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """x_i / |x_i| of finite vectors (n, D), float32 (n, D); zero stays zero. Summed in float64, scaled by the largest
    entry first, so that no square over- or underflows."""
    units = np.zeros(vectors.shape, np.float32)
    step = max(1, BLOCK // vectors.shape[1])
    for first in range(0, len(vectors), step):
        rows = vectors[first : first + step].astype(np.float64)
        largest = np.abs(rows).max(axis=1, keepdims=True)
        rows /= np.where(largest > 0, largest, 1.0)
        lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        np.divide(rows, lengths, out=units[first : first + step], where=lengths > 0, casting="same_kind")
    return units
