"""Hot loops over bags of tokens and over vectors of documents.

Letters: N documents, n vectors, C components, D dims, K clusters, V vocabulary, T tokens.

Guarantee: one thread computes an output row, in an order that depends only on that row's input. So its bytes are the
same however rows are divided among calls and threads. The callers hand out row ranges; the GIL is released.
Twins: tests/twins/pool.py. Known weakness: the scratch of `pool_rows` is dense in V, so a range should hold many
documents.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel
from dagster_divorder.core.vectors.unit import NO_DIRECTION

Tokens = NDArray[np.uint32]
Labels = NDArray[np.int32]
Counts = NDArray[np.int64]
Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]

EPS = 2.0**-23


@kernel
def pool_rows(
    ids: Tokens, starts: Counts, first: int, last: int, table: Singles, weights: Singles, pooled: Singles
) -> None:
    """pooled[d] = s / |s| with s = sum over the distinct tokens t of document d of n_dt w_t table[t].

    Reads ids (T,), starts (N + 1,), table (V, D), weights (V or fewer,); writes rows [first, last) of pooled (N, D).
    Tokens are summed in the order in which the document first uses them, in float64; a sum of zero stays zero.
    O(tokens + distinct tokens x D).
    """
    dims = table.shape[1]
    seen = np.zeros(table.shape[0], np.int32)
    distinct = np.empty(table.shape[0], np.uint32)
    total = np.empty(dims, np.float64)
    for d in range(first, last):
        n = 0
        for k in range(starts[d], starts[d + 1]):
            t = ids[k]
            if seen[t] == 0:
                distinct[n] = t
                n += 1
            seen[t] += 1
        total[:] = 0.0
        for k in range(n):
            t = distinct[k]
            scale = np.float64(seen[t]) * weights[t]
            seen[t] = 0
            for i in range(dims):
                total[i] += scale * table[t, i]
        square = 0.0
        for i in range(dims):
            square += total[i] * total[i]
        inverse = 1.0 / np.sqrt(square) if square > 0.0 else 0.0
        for i in range(dims):
            pooled[d, i] = total[i] * inverse


@kernel
def count_documents(ids: Tokens, starts: Counts, frequency: Counts) -> None:
    """frequency[t] += the number of documents with t. Reads ids (T,), starts (N + 1,); writes frequency (V,).
    O(T + V)."""
    latest = np.full(frequency.shape[0], -1, np.int64)
    for d in range(starts.shape[0] - 1):
        for k in range(starts[d], starts[d + 1]):
            t = ids[k]
            if latest[t] != d:
                latest[t] = d
                frequency[t] += 1


@kernel
def nearest(
    vectors: Singles,
    scores: Singles,
    best: Singles,
    centre: Singles,
    centroids: Singles,
    lengths: Doubles,
    labels: Labels,
    distances: Singles,
) -> int:
    """labels[i] = argmax_k <x_i - c, m_k>, lowest k among equals; distances[i] = 1 - that / (|x_i - c| |m_k|).

    `scores` (N, K) is <x_i - c, m_k> from a float32 matrix product, and `best` (N,) the largest of
    each row. Their last bits depend on the shape of the batch, so they only propose: a float64 sum, in the order of the
    dims, decides among all k near the best proposal. "Near" is twice the bound D eps |x| |m| on the difference of two
    such errors (Higham, Accuracy and Stability, 2002, section 3.1), plus a few eps for the subtraction. Reads vectors
    (N, D), centre (D,), centroids (K, D) and their lengths (K,); writes labels and distances (N,). A row at the centre
    has label 0 and, without a direction, distance 1. Returns the first row that is not finite, else -1. O(K + D) a row,
    and O(D) more for each close call.
    """
    dims = vectors.shape[1]
    clusters = centroids.shape[0]
    longest = 1.0
    for k in range(clusters):
        longest = max(longest, lengths[k])
    centre_size = 0.0
    for i in range(dims):
        centre_size += np.float64(centre[i]) * centre[i]
    centre_size = np.sqrt(centre_size)
    besides = 2.0 * centre_size
    error = 2.0 * (dims + 8) * EPS * longest
    centred = np.empty(dims)
    for row in range(vectors.shape[0]):
        length = 0.0
        for i in range(dims):
            centred[i] = np.float64(vectors[row, i]) - centre[i]
            length += centred[i] * centred[i]
        length = np.sqrt(length)
        if not np.isfinite(length):
            return row
        if length <= NO_DIRECTION * centre_size:
            labels[row] = 0
            distances[row] = 1.0
            continue
        floor = np.float32(best[row] - error * (length + besides))
        label = 0
        largest = -np.inf
        for k in range(clusters):
            if scores[row, k] >= floor:
                dot = 0.0
                for i in range(dims):
                    dot += centred[i] * centroids[k, i]
                if dot > largest:
                    largest = dot
                    label = k
        labels[row] = label
        scale = length * lengths[label]
        distances[row] = max(0.0, 1.0 - largest / scale) if scale > 0.0 else 1.0
    return -1


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
