"""A two-dimensional map on which similar documents are near each other.

Letters: n documents of a map, D dims, C components.
PCA to COMPONENTS dims, unit length, then UMAP on the NEIGHBOURS nearest by Euclidean distance, found exactly, started
from the first two components.

Guarantee: the same bytes for the same vectors and seed (one machine, one umap-learn).
Cost: O(n^2 C) and some seconds that umap-learn compiles in each process.
Source: McInnes, Healy and Melville 2018 (umap-learn). Known weakness: distances between groups and their sizes mean
little. Measurements: docs/decisions/clusters.md.
"""

import warnings
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_blas_thread, one_faiss_thread
from dagster_divorder.core.checks import finite
from dagster_divorder.core.seeds import small_seed
from dagster_divorder.core.vectors import pca
from dagster_divorder.errors import InputError

COMPONENTS = 50
NEIGHBOURS = 15
PCA_ROWS = 5_000
"""Most vectors that the PCA is fitted on."""
START_NOISE = 1e-4
EPOCHS = 100
"""Passes of the layout. umap-learn's 200 or 500 are hardly better."""


def fit(vectors: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """Places float32 (n, 2) of vectors float32 (n, D), n >= 1.

    Raises:
        InputError: there is no vector, or NaN or infinity.
    """
    import faiss

    if vectors.ndim != 2 or not len(vectors):
        raise InputError(f"the vectors have the shape {vectors.shape}; expected at least one row")
    finite("the vectors", vectors)
    sample = vectors[:: -(-len(vectors) // PCA_ROWS)]
    points = pca.project(vectors, pca.fit(sample, min(COMPONENTS, *sample.shape)))
    # Noise separates equal documents; without it UMAP could not.
    start = np.random.default_rng(seed).normal(scale=START_NOISE, size=(len(points), 2)).astype(np.float32)
    start[:, : points.shape[1]] += points[:, :2]
    if len(points) < 3:
        return start
    # Exact neighbours from faiss: umap-learn's own search takes longer than all other steps together.
    neighbours = min(NEIGHBOURS, len(points) - 1)
    with one_faiss_thread():
        squares, near = faiss.knn(points, points, neighbours)
    distances = np.sqrt(np.maximum(squares, 0.0))
    with one_blas_thread(), warnings.catch_warnings():
        # umap-learn warns that a seed means one thread, and that it cannot transform without its own search.
        warnings.simplefilter("ignore")
        layout = (
            _umap()
            .UMAP(
                n_neighbors=neighbours,
                init=start,
                n_epochs=EPOCHS,
                precomputed_knn=(near.astype(np.int32), distances),
                random_state=small_seed(seed),
                n_jobs=1,
            )
            .fit(points)
        )
    return np.ascontiguousarray(layout.embedding_, np.float32)


@cache
def _umap() -> Any:
    """umap-learn, which by itself compiles these functions in each process: most of the time of a small map."""
    import umap

    import dagster_divorder.core.kernels  # noqa: F401  # gives numba a cache folder, which umap-learn needs too

    for function in (umap.umap_.smooth_knn_dist, umap.umap_.compute_membership_strengths):
        function.enable_caching()
    return umap
