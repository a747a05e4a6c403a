"""A two-dimensional map on which similar documents are near each other, and places for new documents on it.

Letters: N documents, n documents of a map, D dims, C components.
The fit: PCA to COMPONENTS dims, unit length, then UMAP on the NEIGHBOURS nearest by Euclidean distance, found exactly,
started from the first two components. A new document is placed at the geometric median of its NEIGHBOURS nearest on the
map, weighted by 1 / distance; mapped documents never move. Unlike the mean, the median does not fall into the gap
between groups.

Guarantee: `fit` gives the same bytes for the same vectors and seed on one machine. A place depends only on the vector
and the map, not on the batch or the number of threads.
Cost: `fit` some 7 s for 20,000 x 128 on one core, O(n^2 C) for the neighbours; `place` 0.3 ms a document, O(n C).
Sources: McInnes, Healy and Melville 2018 (UMAP); Kobak and Linderman 2021 (components as a start); Weiszfeld 1937
(geometric median).
Known weakness: distances between groups and their sizes mean little. A document of a new topic is placed among its
nearest old ones. Measurements: docs/decisions/cluster-map.md.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_faiss_thread
from dagster_divorder.core.checks import finite
from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.seeds import small_seed
from dagster_divorder.core.vectors import pca
from dagster_divorder.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

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

EXTENT = 10.0
"""Width and height of the start of the layout, umap-learn's."""

LEAST_SCALE = 1e-3
"""Smallest scale of likeness, as a share of a point's mean distance to its neighbours, umap-learn's."""

SCALE_STEPS = 40
"""Bisections of the scale: to 1e-12 of the largest."""

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
    xy = umap(points, start, seed) if len(points) > 2 else start.astype(np.float32)
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


def umap(points: NDArray[np.float32], start: NDArray[np.float64], seed: int) -> NDArray[np.float32]:
    """UMAP's layout float32 (n, 2) of points float32 (n, C), n > 2, from a start float64 (n, 2)."""
    from dagster_divorder.core.kernels.umap_layout import lay_out

    heads, tails, likeness = _graph(*_neighbours(points, points, NEIGHBOURS))
    pulls = EPOCHS * likeness / likeness.max()
    kept = pulls >= 1.0
    xy = EXTENT * (start - start.min(axis=0)) / np.ptp(start, axis=0)
    lay_out(xy, heads[kept], tails[kept], EPOCHS / pulls[kept], EPOCHS, A, B, small_seed(seed))
    return xy.astype(np.float32)


def _graph(near: NDArray[np.int32], distances: NDArray[np.float32]) -> tuple[Ints, Ints, Floats]:
    """UMAP's graph of n points: the ends int64 (E,) and int64 (E,) of its edges, each in both directions, and the
    likeness of the ends, float64 (E,). near, distances (n, k), k > 2: the nearest of each point, itself among them.

    Seen from one end the likeness is exp(-(d - nearest) / scale), with the scale at which the likenesses of a point's
    neighbours sum to log2 k. Likenesses p and q from both ends become p + q - p q.
    """
    n, k = near.shape
    itself = near == np.arange(n)[:, np.newaxis]
    nearest = np.where(distances > 0.0, distances, np.inf).min(axis=1, keepdims=True)
    # Without a neighbour at a distance nothing is beyond the nearest.
    beyond = np.where(distances > nearest, distances - nearest.astype(np.float64), 0.0)
    beyond[itself] = np.inf
    low = np.zeros((n, 1))
    high = beyond.max(axis=1, keepdims=True, where=~itself, initial=0.0) / np.log((k - 1) / np.log2(k))
    least = np.maximum(LEAST_SCALE * distances.mean(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    for _ in range(SCALE_STEPS):
        scale = np.maximum((low + high) / 2, least)
        too_small = np.exp(-beyond / scale).sum(axis=1, keepdims=True) < np.log2(k)
        low, high = np.where(too_small, scale, low), np.where(too_small, high, scale)
    likeness = np.exp(-beyond / scale)[~itself]
    one, other = np.nonzero(~itself)[0], near[~itself].astype(np.int64)
    edges = distinct_values(np.concatenate([one * n + other, other * n + one]))
    there, back = np.zeros(len(edges)), np.zeros(len(edges))
    there[np.searchsorted(edges, one * n + other)] = likeness
    back[np.searchsorted(edges, other * n + one)] = likeness
    return edges // n, edges % n, there + back - there * back


def _neighbours(
    points: NDArray[np.float32], queries: NDArray[np.float32], neighbours: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(nearest points of each query int32 (m, k), their distances float32 (m, k)); k is at most n."""
    import faiss

    with one_faiss_thread():
        squares, near = faiss.knn(queries, points, min(neighbours, len(points)))
    return near.astype(np.int32), np.sqrt(np.maximum(squares, 0.0))
