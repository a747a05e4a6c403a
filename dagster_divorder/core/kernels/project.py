"""The hot loop of a projection: vectors on given axes, scaled to length 1.

Letters: n vectors, D dims, C components.

Guarantee: one thread computes an output row, with float64 sums in the order of the dims. So its bytes depend only on
that row's input, not on the batch as in a matrix product. The GIL is released.
Twin: tests/twins/project.py.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel
from dagster_divorder.core.vectors.unit import NO_DIRECTION

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]


@kernel
def project_rows(
    vectors: Singles, first: int, last: int, mean: Doubles, axes: Doubles, projected: Singles
) -> None:
    """projected[i] = y / |y| with y_c = sum_d (x_id - mean_d) axes[d, c].

    Reads vectors (n, D), mean (D,), axes (D, C); writes rows [first, last) of projected (n, C). A row whose distance to
    the mean on these axes is below NO_DIRECTION of the mean's length becomes zero; NaN and infinity become NaN. O(D C)
    a row.
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
