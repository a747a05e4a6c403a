"""A two-dimensional map on which similar documents are near each other, and places for new documents on it.

Letters: N documents, n documents of a map, D dims, C components.
The fit: PCA to COMPONENTS dims, unit length, then UMAP on the NEIGHBOURS nearest by Euclidean distance, found exactly,
started from the first two components. A new document lies on the medoid of its NEIGHBOURS nearest on the map: the one
that is nearest to all of them, weighted by 1 / distance. Mapped documents never move. Unlike a mean, the medoid does
not fall into the gap between groups.

Guarantee: `fit` gives the same bytes for the same vectors and seed (one machine, one umap-learn). A place depends only
on the vector and the map, not on the batch or the number of threads.
Cost: `fit` O(n^2 C) and some seconds that umap-learn compiles in each process; `place` O(n C), 0.3 ms a document.
Source: McInnes, Healy and Melville 2018 (umap-learn). Known weakness: distances between groups and their sizes mean
little. Measurements: docs/decisions/clusters.md.
"""

import warnings
from dataclasses import dataclass
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
EPOCHS = 200
"""Passes of the layout, umap-learn's default above 10,000 points; its 500 for fewer points are hardly better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapFit:
    """A map: the projection; projected documents `points` float32 (n, C); their places `xy` float32 (n, 2)."""

    pca: pca.Pca
    points: NDArray[np.float32]
    xy: NDArray[np.float32]


def fit(vectors: NDArray[np.float32], seed: int) -> MapFit:
    """A map of vectors float32 (n, D), n >= 1.

    Raises:
        InputError: there is no vector, or NaN or infinity.
    """
    if vectors.ndim != 2 or not len(vectors):
        raise InputError(f"the vectors have the shape {vectors.shape}; expected at least one row")
    finite("the vectors", vectors)
    sample = vectors[:: -(-len(vectors) // PCA_ROWS)]
    projection = pca.fit(sample, min(COMPONENTS, *sample.shape))
    points = pca.project(vectors, projection)
    # Noise separates equal documents; without it UMAP could not.
    start = np.random.default_rng(seed).normal(scale=START_NOISE, size=(len(points), 2)).astype(np.float32)
    start[:, : points.shape[1]] += points[:, :2]
    if len(points) < 3:
        return MapFit(pca=projection, points=points, xy=start)
    # Exact neighbours from faiss: umap-learn's own search takes longer than all other steps together.
    neighbours = min(NEIGHBOURS, len(points) - 1)
    near, distances = _neighbours(points, points, neighbours)
    umap = _umap()
    with one_blas_thread(), warnings.catch_warnings():
        # umap-learn warns that a seed means one thread, and that it cannot transform without its own search.
        warnings.simplefilter("ignore")
        layout = umap.UMAP(
            n_neighbors=neighbours,
            init=start,
            n_epochs=EPOCHS,
            precomputed_knn=(near, distances),
            random_state=small_seed(seed),
            n_jobs=1,
        ).fit(points)
    return MapFit(pca=projection, points=points, xy=np.ascontiguousarray(layout.embedding_, np.float32))


@cache
def _umap() -> Any:
    """umap-learn, which by itself compiles these functions in each process: most of the time of a small map."""
    import umap

    import dagster_divorder.core.kernels  # noqa: F401  # gives numba a cache folder, which umap-learn needs too

    for function in (umap.umap_.smooth_knn_dist, umap.umap_.compute_membership_strengths):
        function.enable_caching()
    return umap


def place(vectors: NDArray[np.float32], on: MapFit) -> NDArray[np.float32]:
    """Places float32 (N, 2) of new vectors float32 (N, D) on a map. InputError: other dims, NaN or infinity."""
    finite("the vectors", vectors)
    xy = np.empty((len(vectors), 2), np.float32)
    for at, point in enumerate(pca.project(vectors, on.pca)):
        # One search a document: faiss searches batches by matrix products, whose last bits depend on the batch.
        near, distances = _neighbours(on.points, point[np.newaxis], NEIGHBOURS)
        around = on.xy[near[0]].astype(np.float64)
        apart = np.linalg.norm(around[:, np.newaxis] - around, axis=2)
        xy[at] = around[(apart / np.maximum(distances[0], 1e-9)).sum(axis=1).argmin()]
    return xy


def _neighbours(
    points: NDArray[np.float32], queries: NDArray[np.float32], neighbours: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(nearest points of each query int32 (m, k), their distances float32 (m, k)); k is at most n."""
    import faiss

    with one_faiss_thread():
        squares, near = faiss.knn(queries, points, min(neighbours, len(points)))
    return near.astype(np.int32), np.sqrt(np.maximum(squares, 0.0))
