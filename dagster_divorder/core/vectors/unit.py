"""Vectors of length 1.

Letters: n vectors, D dims.
Guarantee: a result depends only on its vector, not on the batch. Cost: O(n D), BLOCK numbers of scratch.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 20

NO_DIRECTION = 1e-6
"""Nearer to the centre than this share of the centre's length, a vector's direction is rounding noise."""


def unit_rows(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """x_i / |x_i| of finite vectors (n, D), float32 (n, D); zero stays zero. Computed in float64 after scaling by the
    largest entry, so that squares neither over- nor underflow."""
    units = np.zeros(vectors.shape, np.float32)
    step = max(1, BLOCK // vectors.shape[1])
    for first in range(0, len(vectors), step):
        rows = vectors[first : first + step].astype(np.float64)
        largest = np.abs(rows).max(axis=1, keepdims=True)
        rows /= np.where(largest > 0, largest, 1.0)
        lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        np.divide(rows, lengths, out=units[first : first + step], where=lengths > 0, casting="same_kind")
    return units
