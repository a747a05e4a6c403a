"""A two-dimensional map on which similar documents are near each other, and places for new documents on it.

Letters: N documents, n documents of a map, D dims, C components.
The fit: PCA to COMPONENTS dims, unit length, then UMAP on the NEIGHBOURS nearest by Euclidean distance, found exactly,
started from the first two components. A new document is placed at the geometric median of its NEIGHBOURS nearest on the
map, weighted by 1 / distance; mapped documents never move. Unlike the mean, the median does not fall into the gap
between groups.

Guarantee: `fit` gives the same bytes for the same vectors and seed (one machine, one umap-learn). A place depends only
on the vector and the map, not on the batch or the number of threads.
Cost: `fit` some 7 s for 20,000 x 128 on one core, O(n^2 C) for the neighbours, and 17 processor
seconds to import umap-learn and compile what it does not cache; `place` 0.3 ms a document, O(n C), without umap-learn.
Sources: McInnes, Healy and Melville 2018 (umap-learn); Kobak and Linderman 2021 (components as a start); Weiszfeld 1937
(geometric median).
Known weakness: distances between groups and their sizes mean little. A document of a new topic is placed among its
nearest old ones. Measurements: docs/decisions/cluster-map.md.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_faiss_thread
from dagster_divorder.core.checks import finite
from dagster_divorder.core.seeds import small_seed
from dagster_divorder.core.vectors import pca
from dagster_divorder.errors import InputError

COMPONENTS = 50
NEIGHBOURS = 15
A, B = 1.577, 0.895
"""a and b of UMAP's curve 1 / (1 + a d^2b) at a spread of 1 and a minimal distance of 0.1."""

PCA_ROWS = 5_000
"""Most vectors that the PCA is fitted on."""

MEDIAN_STEPS = 30
"""Weiszfeld's iterations; 100 change no figure of docs/decisions/cluster-map.md."""

CLOSEST = 1e-3
"""Smallest distance on the map; a median may coincide with one of its points."""

EPOCHS = 200
"""Passes of the layout: umap-learn's default above 10,000 points. Its 500 for fewer points take 2.4 times as long and
keep 0.638 of the neighbours of 5,000 documents, 200 keep 0.624."""

START_NOISE = 1e-4
"""Noise that separates equal documents; without it UMAP could not separate them."""


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
    start = np.random.default_rng(seed).normal(scale=START_NOISE, size=(len(points), 2))
    start[:, : points.shape[1]] += points[:, :2]
    xy = _umap(points, start.astype(np.float32), seed) if len(points) > 2 else start.astype(np.float32)
    return MapFit(pca=projection, points=points, xy=xy)


def place(vectors: NDArray[np.float32], on: MapFit) -> NDArray[np.float32]:
    """Places float32 (N, 2) of new vectors float32 (N, D) on a map. InputError: other dims, NaN or infinity."""
    finite("the vectors", vectors)
    points = pca.project(vectors, on.pca)
    # One search a document: faiss searches batches by matrix products, whose last bits depend on the batch.
    searches = [_neighbours(on.points, point[np.newaxis], NEIGHBOURS) for point in points]
    if not searches:
        return np.empty((0, 2), np.float32)
    near, distances = (np.concatenate(parts) for parts in zip(*searches, strict=True))
    return _geometric_median(on.xy[near], 1.0 / np.maximum(distances, 1e-9)).astype(np.float32)


def _geometric_median(places: NDArray[np.float32], weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Point of the least weighted sum of distances to k places, float64 (N, 2). places (N, k, 2), weights (N, k).

    A loop over k sums in a fixed order; NumPy's order along an axis depends on the shape of the batch.
    """
    xy, weights = np.moveaxis(places, 1, 0).astype(np.float64), weights.T[..., np.newaxis].astype(np.float64)
    median = sum(weights * xy) / sum(weights)
    for _ in range(MEDIAN_STEPS):
        away = xy - median
        pulls = weights / np.maximum(np.hypot(away[..., :1], away[..., 1:]), CLOSEST)
        median = sum(pulls * xy) / sum(pulls)
    return median


def warm() -> None:
    """Fill numba's cache by a map of a few points."""
    few = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    place(few, fit(few, 0))


def _umap(points: NDArray[np.float32], start: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    # The kernels give numba a cache folder, which umap-learn needs too.
    import umap
    from threadpoolctl import threadpool_limits

    import dagster_divorder.core.kernels  # noqa: F401

    neighbours = min(NEIGHBOURS, len(points) - 1)
    # Exact neighbours from faiss: umap-learn's own search takes longer than all other steps together.
    near, distances = _neighbours(points, points, neighbours)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # umap-learn warns that a seed means one thread, and that it cannot transform without its own search.
        warnings.simplefilter("ignore")
        layout = umap.UMAP(
            n_neighbors=neighbours,
            a=A,
            b=B,
            init=start,
            n_epochs=EPOCHS,
            precomputed_knn=(near, distances),
            random_state=small_seed(seed),
            n_jobs=1,
        ).fit(points)
    return np.ascontiguousarray(layout.embedding_, np.float32)


def _neighbours(
    points: NDArray[np.float32], queries: NDArray[np.float32], neighbours: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(nearest points of each query int32 (m, k), their distances float32 (m, k)); k is at most n."""
    import faiss

    with one_faiss_thread():
        squares, near = faiss.knn(queries, points, min(neighbours, len(points)))
    return near.astype(np.int32), np.sqrt(np.maximum(squares, 0.0))
