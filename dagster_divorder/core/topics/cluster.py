"""k-means on a sample of vectors, and assignment of every vector to its nearest centroid.

Letters: N vectors, n vectors in the sample, D dims, K clusters.
Spherical k-means: the distance of x to a centroid m is 1 - cos(x - centre, m), 0 to 2.

Guarantee: `fit` gives the same bytes for the same sample, k and seed, on one thread. Labels and distances of
`assign` depend only on the vector and the fit, not on the batch, its order or the number of threads.
Cost: fit O(iterations x restarts x n K D) and a copy of the sample; assign O(N K D) at the speed of a matrix product.
Sources: Dhillon and Modha 2001 (spherical k-means); Johnson, Douze and Jegou 2017 (faiss); Arora, Liang and Ma 2017
(removing the direction that all documents share). Known weakness: k-means finds round clusters of similar size, and a
local optimum.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_blas_thread, one_faiss_thread
from dagster_divorder.core.checks import finite
from dagster_divorder.core.seeds import small_seed
from dagster_divorder.core.vectors.unit import NO_DIRECTION, unit_rows
from dagster_divorder.errors import InputError

POINTS_PER_CENTROID = 256
"""Points of the sample for each centroid; more cost time and hardly move the centroids."""
ITERATIONS, RESTARTS, RESTARTS_UP_TO = 25, 5, 100
"""Up to RESTARTS_UP_TO clusters, the best of RESTARTS runs is taken: these runs differ most and cost least."""
BLOCK_SCORES = 1 << 20
"""Scores held at once: 4 MB, about a core's cache."""

DRIFT = 1.25
"""Clusters are fitted again if the mean distance of new documents to their centroids exceeds the sample's by this
factor, and also by twice its standard error."""


@dataclass(frozen=True, kw_only=True)
class ClusterFit:
    """A clustering, largest cluster first.

    centre: float32 (D,), zero if not centred. centroids: float32 (K, D), of length 1. mean_distance: of the sample.
    """

    centre: NDArray[np.float32]
    centroids: NDArray[np.float32]
    mean_distance: float


def most_points(k: int) -> int:
    """Most vectors that a fit needs."""
    return POINTS_PER_CENTROID * k


def fit(
    sample: NDArray[np.float32], k: int, *, seed: int = 0, centre: bool = True, most: int | None = None
) -> ClusterFit:
    """Clusters of sample float32 (n, D), n >= 1.

    A sample of more than `most` vectors, by default `most_points`, is thinned at random. The result
    has fewer than k clusters if the sample has fewer distinct vectors (each is then a centroid), or if some end up
    empty.

    Raises:
        InputError: there is no vector, NaN or infinity, or k below 1.
    """
    import faiss

    if sample.ndim != 2 or not len(sample) or k < 1:
        raise InputError(
            f"the sample has the shape {sample.shape} and k is {k}; expected at least one row and one cluster"
        )
    finite("the sample", sample)
    if len(sample) > (most := most or most_points(k)):
        sample = sample[np.sort(np.random.default_rng(seed).choice(len(sample), most, replace=False))]
    middle = np.zeros(sample.shape[1], np.float32)
    if centre:
        middle = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    points = sample - middle
    lengths = np.linalg.norm(points, axis=1)
    directed = lengths > NO_DIRECTION * np.linalg.norm(middle)
    points = points[directed]
    points /= lengths[directed, np.newaxis]
    if not len(points):
        # Equal vectors have no direction from their mean: they are one cluster, in their own direction.
        middle, points, directed = np.zeros_like(middle), unit_rows(sample[:1]), ~directed

    first: dict[bytes, int] = {}
    for row, point in enumerate(points):
        first.setdefault(point.tobytes(), row)
        if len(first) > k:
            break
    if len(first) <= k:
        centroids = points[list(first.values())]
    else:
        kmeans = faiss.Kmeans(
            points.shape[1],
            k,
            niter=ITERATIONS,
            nredo=RESTARTS if k <= RESTARTS_UP_TO else 1,
            seed=small_seed(seed),
            spherical=True,
            # AFK-MC2 approximates k-means++ without a pass for each centroid.
            init_method=faiss.ClusteringInitMethod_AFK_MC2,
            min_points_per_centroid=1,
            max_points_per_centroid=len(points),
        )
        # The last bits of products depend on the number of threads.
        with one_blas_thread(), one_faiss_thread():
            kmeans.train(points)
        centroids = kmeans.centroids

    labels, distances = assign(sample, ClusterFit(centre=middle, centroids=centroids, mean_distance=0.0))
    # Vectors without a direction belong to the largest cluster, so they must not decide which cluster that is.
    sizes = np.bincount(labels[directed], minlength=len(centroids))
    order = np.argsort(-sizes, kind="stable")[: max(1, np.count_nonzero(sizes))]
    return ClusterFit(
        centre=middle,
        centroids=np.ascontiguousarray(centroids[order]),
        mean_distance=float(distances.mean(dtype=np.float64)),
    )


def assign(vectors: NDArray[np.float32], fit: ClusterFit) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(label of the nearest centroid int32 (N,), distance to it float32 (N,)) of vectors float32 (N, D).

    A vector at the centre has label 0 and distance 1.

    Raises:
        InputError: the vectors have other dims than the fit, or hold NaN or infinity.
    """
    from dagster_divorder.core.kernels.pool import nearest

    clusters, dims = fit.centroids.shape
    if vectors.ndim != 2 or vectors.shape[1] != dims:
        raise InputError(
            f"vectors have the shape {vectors.shape} and the centroids {dims} dims; fit the clusters again"
        )
    vectors = np.ascontiguousarray(vectors, np.float32)
    labels = np.empty(len(vectors), np.int32)
    distances = np.empty(len(vectors), np.float32)
    lengths = np.linalg.norm(fit.centroids.astype(np.float64), axis=1)

    step = max(1, BLOCK_SCORES // clusters)
    # BLAS on one thread: its own threads would wait for each other after each product.
    with one_blas_thread():
        for first in range(0, len(vectors), step):
            rows = slice(first, first + step)
            block = vectors[rows]
            scores = np.subtract(block, fit.centre, dtype=np.float32) @ fit.centroids.T
            outputs = labels[rows], distances[rows]
            bad = nearest(block, scores, scores.max(axis=1), fit.centre, fit.centroids, lengths, *outputs)
            if bad >= 0:
                raise InputError(
                    f"vector {first + bad} holds NaN or infinity; expected finite numbers: embed it again"
                )
    return labels, distances
