"""The number of clusters: the highest whose silhouette is close to the best.

The silhouette measures how well clusters are separated, and falls if k splits them. An order gains from many clusters,
because it mixes only what it can distinguish.

Letters: N vectors, D dims.
Cost: `distances` O(N^2 D), `silhouette` O(N^2); for SAMPLE vectors 400 MB, and a quarter of a second a clustering.
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


def distances(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosine distances float32 (N, N) of vectors float32 (N, D)."""
    from sklearn.metrics.pairwise import cosine_distances

    with one_blas_thread():  # its last bits would depend on the number of threads
        return np.asarray(cosine_distances(vectors), np.float32)


def silhouette(between: NDArray[np.float32], labels: NDArray[np.integer]) -> float:
    """Mean silhouette by distances (N, N) and labels int (N,); 0 where it is not defined, because all labels are equal
    or all are different."""
    from sklearn.metrics import silhouette_samples

    if not 1 < len(np.unique(labels)) < len(labels):
        return 0.0
    return float(silhouette_samples(between, labels, metric="precomputed").mean(dtype=np.float64))


def as_good_as(best: float) -> float:
    """The lowest silhouette that is close to the best one."""
    return best - CLOSE * abs(best)


def recommended(means: Sequence[float]) -> int:
    """Index of the last mean silhouette, by rising number of clusters, that is close to the best."""
    return int(np.flatnonzero(np.array(means) >= as_good_as(max(means)))[-1])
