"""A map of documents in the plane, similar ones near each other, and the places of new documents on it.

Letters: N documents, n documents of a map, D dims, C components.
PCA to COMPONENTS dims and unit length, then UMAP of the NEIGHBOURS nearest by Euclidean distance, found exactly,
started from the first two components. A new document comes to lie where UMAP's transform puts it, given that document
alone; the others stay where they are.

Guarantee: the same bytes from `fit` for the same vectors and seed (one machine, one umap-learn); from `place`, a place
that depends on that vector and the map alone, whatever the batch or the number of threads.
Cost: `fit` some 7 s for 20,000 x 128 on one core, O(n^2 C) for the neighbours, and 6 s to import umap-learn and compile
what it does not keep; `place` 0.3 ms a document, O(n C), without umap-learn.
Source: McInnes, Healy and Melville 2018 (umap-learn); Kobak and Linderman 2021 (components as a start).
Known weakness: distances between groups, and their sizes on the map, mean little. A document of a new topic lies among
the old ones it is nearest to. Measured: docs/decisions/cluster-map.md.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core import pca
from dagster_divorder.core.seeds import small_seed
from dagster_divorder.errors import InputError

COMPONENTS = 50
NEIGHBOURS = 15
A, B = 1.577, 0.895
"""Of UMAP's curve 1 / (1 + a d^2b), for its spread of 1 and minimal distance of 0.1."""

PCA_ROWS = 5_000
"""Vectors that components are found from."""

DRAWS = 1 << 13
"""Repelling points that are drawn for a document that is placed, more than it can use."""

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
    except (ImportError, OSError) as error:  # OSError: a library of its own does not load
        return f"no map: umap-learn cannot be imported ({error}); pip install umap-learn, then run cluster_map again"
    return None


def layout(vectors: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """Places float32 (n, 2) of vectors float32 (n, D) on a map of their own; see `fit`."""
    return fit(vectors, seed).xy


def fit(vectors: NDArray[np.float32], seed: int) -> MapFit:
    """A map of vectors float32 (n, D), n >= 1.

    Raises:
        InputError: no vector, NaN or infinity.
        ImportError: umap-learn cannot be imported; see `why_no_map`.
    """
    if vectors.ndim != 2 or not len(vectors):
        raise InputError(f"the vectors have the shape {vectors.shape}; expected at least one row")
    _check_finite(vectors)
    sample = vectors[:: -(-len(vectors) // PCA_ROWS)]
    projection = pca.fit(sample, min(COMPONENTS, *sample.shape))
    points = pca.project(vectors, projection)
    start = np.random.default_rng(seed).normal(scale=START_NOISE, size=(len(points), 2))
    start[:, : points.shape[1]] += points[:, :2]
    xy = _umap(points, start.astype(np.float32), seed) if len(points) > 2 else start.astype(np.float32)
    return MapFit(pca=projection, points=points, xy=xy)


def place(vectors: NDArray[np.float32], on: MapFit, *, threads: int = 1) -> NDArray[np.float32]:
    """Places float32 (N, 2) of new vectors float32 (N, D) on a map. InputError for another D, NaN or infinity."""
    from dagster_divorder.core.kernels.place import place_rows

    _check_finite(vectors)
    points = pca.project(vectors, on.pca, threads=threads)
    columns = np.ascontiguousarray(on.points.T)
    n = len(on.points)
    draws = np.random.default_rng(0).integers(0, n, DRAWS)
    placed = np.empty((len(points), 2), np.float32)
    cuts = np.linspace(0, len(points), threads + 1).astype(int).tolist()

    def fill(first: int, last: int) -> None:
        place_rows(points, columns, on.xy, min(NEIGHBOURS, n), draws, A, B, first, last, placed)

    with ThreadPoolExecutor(threads) as workers:
        list(workers.map(fill, cuts[:-1], cuts[1:]))
    return placed


def warm() -> None:
    """Compile what numba keeps on disk for later processes, by a map of a few points. Without umap-learn, nothing."""
    if why_no_map() is None:
        few = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
        place(few, fit(few, 0))


def _check_finite(vectors: NDArray[np.float32]) -> None:
    if not np.isfinite(vectors).all():
        raise InputError(
            "the vectors hold NaN or infinity; expected finite numbers: embed those documents again"
        )


def _umap(points: NDArray[np.float32], start: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    import umap
    from threadpoolctl import threadpool_limits

    neighbours = min(NEIGHBOURS, len(points) - 1)
    # Exact neighbours from faiss: umap-learn's own search takes longer than everything else together.
    near, distances = _neighbours(points, neighbours)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # It warns that a seed means one thread, and that without its own search it will not transform.
        warnings.simplefilter("ignore")
        found = umap.UMAP(
            n_neighbors=neighbours,
            a=A,
            b=B,
            init=start,
            precomputed_knn=(near, distances),
            random_state=small_seed(seed),
            n_jobs=1,
        ).fit(points)
    return np.ascontiguousarray(found.embedding_, np.float32)


def _neighbours(
    points: NDArray[np.float32], neighbours: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The nearest points of each point, itself included, int32 (n, k), and their distances float32 (n, k)."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        index = faiss.IndexFlatL2(points.shape[1])
        index.add(points)
        squares, near = index.search(points, neighbours)
    finally:
        faiss.omp_set_num_threads(before)
    return near.astype(np.int32), np.sqrt(np.maximum(squares, 0.0))
