"""Hot loops that turn vectors into unit vectors: on their own, and on the axes of a projection.

Letters: n vectors, D dims, C components.

Guarantee: an output row is computed by one thread, its sums in the order of the dims and in float64, so that its bytes
depend on that row's input alone: not on the batch, as those of a matrix product do. The GIL is released.
Twins: reference_project.py.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dagster_divorder.core.kernels.pool import NO_DIRECTION

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]
Vectors = Singles | Doubles


@njit(cache=True, nogil=True)
def unit_rows(vectors: Vectors, units: Singles) -> int:
    """units[i] = x_i / |x_i|; zero stays zero.

    Reads vectors (n, D), float32 or float64; writes units (n, D). Rows are scaled by their largest entry first, so that
    no square over- or underflows. Returns the first row that is not finite, else -1. O(n D).
    """
    dims = vectors.shape[1]
    for row in range(vectors.shape[0]):
        largest = 0.0
        for i in range(dims):
            x = abs(np.float64(vectors[row, i]))
            if not x < np.inf:
                return row
            largest = max(largest, x)
        square = 0.0
        if largest > 0.0:
            for i in range(dims):
                x = np.float64(vectors[row, i]) / largest
                square += x * x
        length = np.sqrt(square)
        for i in range(dims):
            units[row, i] = np.float64(vectors[row, i]) / largest / length if largest > 0.0 else 0.0
    return -1


@njit(cache=True, nogil=True)
def project_rows(
    vectors: Singles, first: int, last: int, mean: Doubles, axes: Doubles, projected: Singles
) -> None:
    """projected[i] = y / |y| with y_c = sum_d (x_id - mean_d) axes[d, c].

    Reads vectors (n, D), mean (D,), axes (D, C); writes rows [first, last) of projected (n, C). A row nearer to the
    mean, on these axes, than NO_DIRECTION of the mean's length becomes zero; NaN and infinity become NaN. O(D C) a row.
    """
    dims, components = axes.shape
    total = np.empty(components)
    mean_size = 0.0
    for i in range(dims):
        mean_size += mean[i] * mean[i]
    mean_size = np.sqrt(mean_size)
    for row in range(first, last):
        total[:] = 0.0
        for i in range(dims):
            x = np.float64(vectors[row, i]) - mean[i]
            for c in range(components):
                total[c] += x * axes[i, c]
        square = 0.0
        for c in range(components):
            square += total[c] * total[c]
        length = np.sqrt(square)
        if length <= NO_DIRECTION * mean_size:
            projected[row] = 0.0
        else:
            for c in range(components):
                projected[row, c] = total[c] / length
