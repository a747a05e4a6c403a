"""A map of documents in the plane, similar ones near each other, and the places of new documents on it.

Letters: N documents, n documents of a map, D dims, C components.
PCA to COMPONENTS dims and unit length, then UMAP of the NEIGHBOURS nearest by Euclidean distance, found exactly,
started from the first two components. A new document comes to lie at the geometric median of the places of its
NEIGHBOURS nearest on the map, each weighted by one over its distance; the others stay where they are. The median goes
to where most of them are, whereas their mean lies in the white between groups if they are of several.

Guarantee: the same bytes from `fit` for the same vectors and seed (one machine, one umap-learn); from `place`, a place
that depends on that vector and the map alone, whatever the batch or the number of threads.
Cost: `fit` some 7 s for 20,000 x 128 on one core, O(n^2 C) for the neighbours, and 3 s to import umap-learn and compile
what is not kept; `place` 0.3 ms a document, O(n C), without umap-learn.
Sources: McInnes, Healy and Melville 2018 (umap-learn); Kobak and Linderman 2021 (components as a start); Weiszfeld 1937
(geometric median).
Known weakness: distances between groups, and their sizes on the map, mean little. A document of a new topic lies among
the old ones it is nearest to. Measured: docs/decisions/cluster-map.md.
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
"""Of UMAP's curve 1 / (1 + a d^2b), for its spread of 1 and minimal distance of 0.1."""

PCA_ROWS = 5_000
"""Vectors that components are found from."""

MEDIAN_STEPS = 30
"""Of Weiszfeld's iteration; 100 change no figure of docs/decisions/cluster-map.md."""

CLOSEST = 1e-3
"""Distances on the map below this count as this: a median may lie on a place that it is made of."""

EPOCHS = 200
"""Passes of the layout: umap-learn's own number for more than 10,000 points. Its 500 for fewer take 2.4 times as long,
and keep 0.638 of the neighbours of 5,000 documents where 200 keep 0.624."""

START_NOISE = 1e-4
"""Documents that are equal have to part for UMAP to move them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapFit:
    """A map: the projection, the projected documents points float32 (n, C) and their places xy float32 (n, 2)."""

    pca: pca.Pca
    points: NDArray[np.float32]
    xy: NDArray[np.float32]


def why_no_map() -> str | None:
    """Why no map can be fitted here, in words, None where umap-learn can be imported."""
    try:
        import umap  # noqa: F401

        import dagster_divorder.core.kernels  # noqa: F401  # finds numba a folder, which umap-learn needs too
    except (ImportError, OSError) as error:  # OSError: a library of its own does not load
        return f"no map: umap-learn cannot be imported ({error}); pip install umap-learn, then run cluster_map again"
    return None


def fit(vectors: NDArray[np.float32], seed: int) -> MapFit:
    """A map of vectors float32 (n, D), n >= 1.

    Raises:
        InputError: no vector, NaN or infinity.
        ImportError: umap-learn cannot be imported; see `why_no_map`.
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
    """Places float32 (N, 2) of new vectors float32 (N, D) on a map. InputError for another D, NaN or infinity."""
    finite("the vectors", vectors)
    points = pca.project(vectors, on.pca)
    # One search a document: those of a larger batch are matrix products, whose last bits depend on the batch.
    searches = [_neighbours(on.points, point[np.newaxis], NEIGHBOURS) for point in points]
    if not searches:
        return np.empty((0, 2), np.float32)
    near, distances = (np.concatenate(parts) for parts in zip(*searches, strict=True))
    return _geometric_median(on.xy[near], 1.0 / np.maximum(distances, 1e-9)).astype(np.float32)


def _geometric_median(places: NDArray[np.float32], weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Of N times k places, float (N, k, 2), with weights (N, k): what the sum of weighted distances is least from.

    Sums run over k one after another, not along an axis, where NumPy's order depends on the shape of the batch.
    """
    xy, weights = np.moveaxis(places, 1, 0).astype(np.float64), weights.T[..., np.newaxis].astype(np.float64)
    median = sum(weights * xy) / sum(weights)
    for _ in range(MEDIAN_STEPS):
        away = xy - median
        pulls = weights / np.maximum(np.hypot(away[..., :1], away[..., 1:]), CLOSEST)
        median = sum(pulls * xy) / sum(pulls)
    return median


def warm() -> None:
    """Compile what numba keeps on disk for later processes, by a map of a few points. Without umap-learn, nothing."""
    if why_no_map() is None:
        few = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
        place(few, fit(few, 0))


def _umap(points: NDArray[np.float32], start: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    import umap
    from threadpoolctl import threadpool_limits

    neighbours = min(NEIGHBOURS, len(points) - 1)
    # Exact neighbours from faiss: umap-learn's own search takes longer than everything else together.
    near, distances = _neighbours(points, points, neighbours)
    # umap-learn keeps these nowhere: every process would compile them again, for six seconds.
    for kernel in (
        umap.umap_.smooth_knn_dist,
        umap.umap_.compute_membership_strengths,
        umap.layouts._nb_optimize_layout_euclidean_single_epoch,
    ):
        kernel.enable_caching()
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # It warns that a seed means one thread, and that without its own search it will not transform.
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
    """The nearest points of each query, int32 (m, k), and their distances float32 (m, k); k is at most n."""
    import faiss

    with one_faiss_thread():
        squares, near = faiss.knn(queries, points, min(neighbours, len(points)))
    return near.astype(np.int32), np.sqrt(np.maximum(squares, 0.0))
