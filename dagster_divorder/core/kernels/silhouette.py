"""Hot loops of the silhouette over cluster sums.

Letters: N vectors, D dims, K clusters; x_i a vector, c the centre, u_i = (x_i - c) / |x_i - c|, S_k the sum of the u of
cluster k and n_k their number.

Guarantee: rows are taken one after another, each sum in the order of the dims, in float64: the bytes do not depend on
how the rows are divided among calls. The GIL is released.
Twin: tests/twins/silhouette.py.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dagster_divorder.core.kernels.pool import EPS, NO_DIRECTION

Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]
Labels = NDArray[np.int32]
Counts = NDArray[np.int64]

NOTHING = 1e-12
"""Mean distances below this are rounding noise around 0."""


@njit(cache=True, nogil=True)
def add_directions(vectors: Singles, labels: Labels, centre: Singles, sums: Doubles, sizes: Counts) -> int:
    """sums[k] += S_k, sizes[k] += n_k over these rows.

    A vector at the centre has no direction: it counts in n_k and adds nothing to S_k. Reads vectors (N, D), labels
    (N,) in [0, K), centre (D,); adds to sums (K, D) and sizes (K,). Returns the first row that is not finite, else -1.
    O(N D).
    """
    dims = vectors.shape[1]
    least = _least_length(centre)
    for row in range(vectors.shape[0]):
        length = 0.0
        for i in range(dims):
            x = np.float64(vectors[row, i]) - centre[i]
            length += x * x
        length = np.sqrt(length)
        if not np.isfinite(length):
            return row
        label = labels[row]
        sizes[label] += 1
        if length > least:
            for i in range(dims):
                sums[label, i] += (np.float64(vectors[row, i]) - centre[i]) / length
    return -1


@njit(cache=True, nogil=True)
def add_silhouettes(
    vectors: Singles,
    labels: Labels,
    scores: Singles,
    centre: Singles,
    offsets: Doubles,
    sums: Doubles,
    sizes: Counts,
    totals: Doubles,
) -> None:
    """totals[k] += the silhouettes of the rows of cluster k.

    With own cluster l and any other k, mean cosine distances are
        a_i = 1 - (u_i . S_l - u_i . u_i) / (n_l - 1)        b_i = min_k 1 - u_i . S_k / n_k
        s_i = (b_i - a_i) / max(a_i, b_i), 0 where n_l is 1, where a_i and b_i are 0, and without another cluster.
    `scores` (N, K) is x_i . S_k / n_k from a matrix product in float32, whose last bits depend on the shape of the
    batch, so it only proposes: every k near enough to the best proposal is decided by a sum in float64. Near enough is
    twice the bound on the difference of two such errors, as in `pool.nearest`, and one rounding of S_k / n_k more.
    Reads vectors (N, D), labels (N,), centre (D,), offsets (K,), c . S_k / n_k, sums (K, D) and sizes (K,); adds to
    totals (K,). O(N (K + D)), and O(D) more for each close call.
    """
    dims = vectors.shape[1]
    clusters = sizes.shape[0]
    others = 0
    for k in range(clusters):
        others += sizes[k] > 0
    if others < 2:
        return
    least = _least_length(centre)
    centre_size = least / NO_DIRECTION
    error = 2.0 * (dims + 2) * EPS
    unit = np.empty(dims)
    for row in range(vectors.shape[0]):
        own = labels[row]
        if sizes[own] == 1:
            continue
        size = 0.0
        length = 0.0
        for i in range(dims):
            x = np.float64(vectors[row, i])
            unit[i] = x - centre[i]
            size += x * x
            length += unit[i] * unit[i]
        length = np.sqrt(length)
        if length <= least:
            continue  # as far, 1, from all
        own_dot = 0.0
        square = 0.0
        for i in range(dims):
            unit[i] /= length
            square += unit[i] * unit[i]
            own_dot += unit[i] * sums[own, i]
        best = -np.inf
        for k in range(clusters):
            if k != own and sizes[k] > 0:
                best = max(best, scores[row, k] - offsets[k])
        floor = best - error * (np.sqrt(size) + centre_size)
        nearest = -np.inf
        for k in range(clusters):
            if k != own and sizes[k] > 0 and scores[row, k] - offsets[k] >= floor:
                dot = 0.0
                for i in range(dims):
                    dot += unit[i] * sums[k, i]
                nearest = max(nearest, dot / sizes[k])
        a = 1.0 - (own_dot - square) / (sizes[own] - 1)
        b = 1.0 - nearest
        a = a if a > NOTHING else 0.0
        b = b if b > NOTHING else 0.0
        if max(a, b) > 0.0:
            totals[own] += (b - a) / max(a, b)


@njit(cache=True, nogil=True)
def _least_length(centre: Singles) -> float:
    """A vector no farther from the centre than this has rounding noise for a direction."""
    square = 0.0
    for i in range(centre.shape[0]):
        square += np.float64(centre[i]) * centre[i]
    return NO_DIRECTION * np.sqrt(square)
