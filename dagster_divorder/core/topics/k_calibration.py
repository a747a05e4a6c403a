"""The number of clusters: the highest whose silhouette is close to the best.

The silhouette measures how well clusters are separated, and falls if k splits them. An order gains from many clusters,
because it mixes only what it can distinguish.

Letters: N vectors, D dims, K clusters.
The mean cosine distance of a vector x of length 1 to a cluster is 1 - <x, mean of the cluster>, so no distance of two
vectors is needed: scikit-learn's silhouettes, a hundred times as fast.
Cost: O(N K D).
Sources: Rousseeuw 1987 (silhouettes); Diversity-Ordered Training (`--calibrate-k`: 10,000 documents at random, within
5 % of the peak).
Known weakness: the silhouettes of two fits to one corpus differ by about CLOSE, so neighbouring numbers may change
places; very small clusters (near copies) have high silhouettes again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_blas_thread

SAMPLE = 10_000
"""Documents on which silhouettes are computed."""
CLOSE = 0.05


def silhouette(vectors: NDArray[np.float32], labels: NDArray[np.integer]) -> float:
    """Mean silhouette by cosine distance of vectors (N, D) of length 1 or 0, and labels int (N,) from 0 to K - 1; 0
    where it is not defined, because all labels are equal or all are different."""
    sizes = np.bincount(labels)
    if not 1 < np.count_nonzero(sizes) < len(labels):
        return 0.0
    rows, vectors = np.arange(len(labels)), vectors.astype(np.float64)
    sums = np.zeros((len(sizes), vectors.shape[1]))
    np.add.at(sums, labels, vectors)
    with one_blas_thread():  # its last bits would depend on the number of threads
        apart = sizes - vectors @ sums.T  # sums of distances, (N, K)
    own = apart[rows, labels] - (1 - np.square(vectors).sum(axis=1))
    inside = own / np.maximum(sizes[labels] - 1, 1)
    apart[rows, labels] = np.inf
    nearest = (apart[:, sizes > 0] / sizes[sizes > 0]).min(axis=1)
    widths = (nearest - inside) / np.maximum(np.maximum(inside, nearest), np.finfo(float).tiny)
    return float(np.where(sizes[labels] > 1, widths, 0.0).mean())


def as_good_as(best: float) -> float:
    """The lowest silhouette that is close to the best one."""
    return best - CLOSE * abs(best)


def recommended(means: Sequence[float]) -> int:
    """Index of the last mean silhouette, by rising number of clusters, that is close to the best."""
    return int(np.flatnonzero(np.array(means) >= as_good_as(max(means)))[-1])
