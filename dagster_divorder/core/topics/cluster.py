"""k-means on a sample of vectors, and assignment of every vector to its nearest centroid.

Letters: N vectors, n vectors in the sample, D dims, K clusters.
Metric cosine: the distance of x to a centroid m is 1 - cos(x - centre, m), 0 to 2. Metric euclidean, as in the papers:
the distance is |x - m|.

Guarantee: `fit` gives the same bytes for the same sample, k, algorithm, metric and seed. Labels and distances of
`assign` depend only on the vector and the fit, not on the batch, its order or the number of threads.
Cost: fit O(iterations x restarts x n K D), n at most `most_points`, and a copy of the sample (none with
`overwrite`); assign O(N K D) at the speed of a matrix product, with BLOCK_SCORES float32 of scratch a thread.
Sources: Dhillon and Modha 2001 (spherical k-means); Johnson, Douze and Jegou 2017 (faiss); Bachem, Lucic,
Hassani and Krause 2016 (AFK-MC2, its first centroids); Sculley 2010 (mini-batch, with the numbers of
Diversity-Ordered Training); Arora, Liang and Ma 2017 (removing the direction that all documents share).
Known weakness: k-means finds round clusters of similar size, and a local optimum. Measurements:
docs/decisions/base-model.md.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_blas_thread
from dagster_divorder.core.checks import finite
from dagster_divorder.core.seeds import small_seed
from dagster_divorder.core.vectors.unit import NO_DIRECTION
from dagster_divorder.errors import InputError

Algorithm = Literal["faiss", "minibatch"]
Metric = Literal["cosine", "euclidean"]

POINTS_PER_CENTROID = 256
"""Points of the sample for each centroid; more cost time and hardly move the centroids."""

ITERATIONS = 25
RESTARTS = 5
RESTARTS_UP_TO = 100
"""Up to this many clusters, the best of RESTARTS runs is taken: these runs differ most and cost least."""
RESTART_SEEDS = 15_486_557
"""Step between the seeds of restarts; large, so that restarts of neighbouring seeds differ."""

BATCH_POINTS = 4096
BATCH_RESTARTS = 3
"""For `minibatch`, as in Diversity-Ordered Training."""

APART = 1 / 1024
"""Relative distance between the halves of a split cluster, as in faiss."""

BLOCK_SCORES = 1 << 20
"""Scores that a thread holds at once: 4 MB, about a core's cache."""

Each = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]

DRIFT = 1.25
"""Clusters are fitted again if the mean distance of new documents to their centroids exceeds the sample's by this
factor, and also by twice its standard error."""


@dataclass(frozen=True, kw_only=True)
class ClusterFit:
    """A clustering, largest cluster first.

    centre: float32 (D,), zero if not centred. centroids: float32 (K, D), of length 1; with the metric euclidean, means.
    sizes, int64 (K,), and mean_distance: of the sample. iterations: of the best run. objective: mean cosine of a vector
    and its centroid, with the metric euclidean the mean squared distance. note: why there are fewer clusters than asked
    for, or "".
    """

    centre: NDArray[np.float32]
    centroids: NDArray[np.float32]
    sizes: NDArray[np.int64]
    mean_distance: float
    iterations: int
    objective: float
    note: str
    metric: Metric = "cosine"

    @cached_property
    def lengths(self) -> NDArray[np.float64]:
        """Lengths of the centroids, float64 (K,)."""
        return np.linalg.norm(self.centroids.astype(np.float64), axis=1)


def most_points(k: int, algorithm: Algorithm) -> int:
    """Most vectors that a fit uses; `minibatch` reads batches, so it uses all."""
    return POINTS_PER_CENTROID * k if algorithm == "faiss" else sys.maxsize


def fit(
    sample: NDArray[np.float32],
    k: int,
    *,
    algorithm: Algorithm = "faiss",
    metric: Metric = "cosine",
    seed: int = 0,
    centre: bool = True,
    overwrite: bool = False,
) -> ClusterFit:
    """Clusters of sample float32 (n, D), n >= 1; `overwrite` destroys the sample.

    A sample of more than `most_points` vectors is thinned at random. The metric euclidean ignores `centre`. The result
    has fewer than k clusters if the sample has fewer distinct vectors (each is then a centroid), or if some end up
    empty.

    Raises:
        InputError: there is no vector, NaN or infinity, k below 1, or an unknown algorithm or metric.
    """
    for name, value, known in (("algorithm", algorithm, Algorithm), ("metric", metric, Metric)):
        if value not in get_args(known):
            raise InputError(f"{name} is {value!r}; expected one of {', '.join(get_args(known))}")
    if sample.ndim != 2 or not len(sample) or k < 1:
        raise InputError(
            f"the sample has the shape {sample.shape} and k is {k}; expected at least one row and one cluster"
        )
    finite("the sample", sample)
    thinned, most = sample, most_points(k, algorithm)
    if len(sample) > most:
        thinned = sample[np.sort(np.random.default_rng(seed).choice(len(sample), most, replace=False))]
    thinned = np.ascontiguousarray(thinned, np.float32)
    if metric == "euclidean":
        return _fit(thinned, thinned, k, algorithm, metric, seed)
    room = thinned if overwrite or not np.may_share_memory(thinned, sample) else np.empty_like(thinned)
    middle = (
        thinned.mean(axis=0, dtype=np.float64).astype(np.float32) if centre else np.zeros_like(thinned[0])
    )
    placed, directed = _directions(thinned, middle, room)
    if not directed.any():
        # If all vectors are equal, centring would leave them without a direction.
        alike = np.broadcast_to(middle if centre else thinned[0], thinned.shape)
        placed, directed = _directions(alike, np.zeros_like(middle), room)
        middle = np.zeros_like(middle)
    points = placed if directed.all() else placed[directed]
    return replace(_fit(placed, points, k, algorithm, metric, seed), centre=middle)


def _fit(
    placed: NDArray[np.float32],
    points: NDArray[np.float32],
    k: int,
    algorithm: Algorithm,
    metric: Metric,
    seed: int,
) -> ClusterFit:
    """Clusters of `points`, the rows of `placed` that have a direction; without a centre."""
    distinct = _distinct(points, k + 1)
    if len(distinct) <= k:
        centroids, iterations, objective = distinct, 0, float(metric == "cosine")
        note = (
            f"{len(centroids)} clusters of {k}: the sample has no more distinct vectors"
            if len(distinct) < k
            else ""
        )
    else:
        run = _faiss if algorithm == "faiss" else _minibatch
        centroids, iterations, objective = run(points, k, seed, metric)
        note = ""
    fitted = ClusterFit(
        centre=np.zeros_like(placed[0]),
        centroids=centroids,
        sizes=np.zeros(len(centroids), np.int64),
        mean_distance=0.0,
        iterations=iterations,
        objective=objective,
        note=note,
        metric=metric,
    )
    return _largest_first(fitted, placed)


def assign(vectors: NDArray[np.float32], fit: ClusterFit) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(label of the nearest centroid int32 (N,), distance to it float32 (N,)) of vectors float32 (N, D).

    With the metric cosine a vector at the centre has label 0 and distance 1.

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
    euclidean = fit.metric == "euclidean"
    offsets = (0.5 * fit.lengths**2).astype(np.float32)

    def assign_rows(rows: slice) -> None:
        block = vectors[rows]
        scores = np.subtract(block, fit.centre, dtype=np.float32) @ fit.centroids.T
        if euclidean:
            scores -= offsets
        best = scores.max(axis=1)
        bad = nearest(
            block,
            scores,
            best,
            fit.centre,
            fit.centroids,
            fit.lengths,
            euclidean,
            labels[rows],
            distances[rows],
        )
        if bad >= 0:
            raise InputError(
                f"vector {rows.start + bad} holds NaN or infinity; expected finite numbers: embed it again"
            )

    if len(vectors) == 1:
        # For one vector, limiting the threads takes longer than the work.
        assign_rows(slice(0, 1))
    else:
        with _threads() as each:
            each(assign_rows, _blocks(len(vectors), clusters))
    return labels, distances


@contextmanager
def _threads() -> Iterator[Each]:
    """A map over items, one thread an item.

    BLAS uses one thread meanwhile: its own threads would wait for each other after each product, and its last bits
    would depend on their number.
    """
    from joblib import cpu_count

    with one_blas_thread(), ThreadPoolExecutor(cpu_count()) as workers:

        def each(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
            # One item needs no thread; the pool starts its threads on first use.
            return list(workers.map(function, items)) if len(items) > 1 else _in_turn(function, items)

        yield each


def _in_turn(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return list(map(function, items))


def _blocks(rows: int, numbers: int) -> list[slice]:
    """Slices of `rows` rows, each with about BLOCK_SCORES numbers at `numbers` a row."""
    step = max(1, BLOCK_SCORES // numbers)
    return [slice(first, first + step) for first in range(0, rows, step)]


def _directions(
    sample: NDArray[np.float32], centre: NDArray[np.float32], room: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """(unit vectors from the centre, float32 (n, D); rows with a direction, bool (n,), the others being zero). Written
    to `room`, which may be the sample itself."""
    directed = np.empty(len(sample), bool)
    floor = NO_DIRECTION * np.linalg.norm(centre)
    for rows in _blocks(*sample.shape):
        points = np.subtract(sample[rows], centre, out=room[rows])
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        directed[rows] = lengths[:, 0] > floor
        points[~directed[rows]] = 0.0
        np.divide(points, lengths, out=points, where=lengths > floor)
    return room, directed


def _distinct(points: NDArray[np.float32], limit: int) -> NDArray[np.float32]:
    """The first distinct rows, at most `limit`; one row of zeros if there is none."""
    first: dict[bytes, int] = {}
    for row, point in enumerate(points):
        first.setdefault(point.tobytes(), row)
        if len(first) == limit:
            break
    return points[list(first.values())] if first else np.zeros((1, points.shape[1]), np.float32)


def _faiss(
    points: NDArray[np.float32], k: int, seed: int, metric: Metric
) -> tuple[NDArray[np.float32], int, float]:
    """The best of several runs of Lloyd's iterations from faiss's first centroids."""
    import faiss

    # AFK-MC2 approximates k-means++ without a pass for each centroid.
    first = faiss.ClusteringInitialization(points.shape[1], k)  # type: ignore[attr-defined]
    first.method = faiss.ClusteringInitMethod_AFK_MC2
    firsts = []
    for number in range(RESTARTS if k <= RESTARTS_UP_TO else 1):
        first.seed = small_seed(seed + number * RESTART_SEEDS)
        firsts.append(np.empty((k, points.shape[1]), np.float32))
        first.init_centroids(len(points), faiss.swig_ptr(points), faiss.swig_ptr(firsts[-1]))
    with _threads() as each:
        if len(firsts) == 1:
            return _lloyd(points, firsts[0], metric, each)
        runs = each(lambda centroids: _lloyd(points, centroids, metric, _in_turn), firsts)
    return max(runs, key=lambda run: run[2] if metric == "cosine" else -run[2])


def _lloyd(
    points: NDArray[np.float32], centroids: NDArray[np.float32], metric: Metric, each: Each
) -> tuple[NDArray[np.float32], int, float]:
    """(centroids, iterations, mean cosine or squared distance in the last iteration), from first centroids.

    Products have the same rows and sums the same order for any number of threads.
    """
    from dagster_divorder.core.kernels.pool import sum_members

    k, blocks, euclidean = len(centroids), _blocks(len(points), len(centroids)), metric == "euclidean"
    # Narrow integers sort several times as fast.
    labels = np.full(len(points), k, np.min_scalar_type(k))
    scores = np.empty(len(points), np.float32)
    sums, offsets, starts = np.empty(centroids.shape), np.zeros(k, np.float32), np.zeros(k + 1, np.int64)
    squares = sum(float(np.vdot(points[rows], points[rows])) for rows in blocks) if euclidean else 0.0

    def find(rows: slice) -> None:
        products = points[rows] @ centroids.T
        products -= offsets
        nearest = products.argmax(axis=1)
        labels[rows], scores[rows] = nearest, products[np.arange(len(products)), nearest]

    def add(clusters: slice) -> None:
        sum_members(points, members, starts, clusters.start, min(clusters.stop, k), sums)

    for iteration in range(1, ITERATIONS + 1):  # noqa: B007
        before = labels.copy()
        if euclidean:
            offsets[:] = 0.5 * np.einsum("kd,kd->k", centroids, centroids)
        each(find, blocks)
        if np.array_equal(before, labels):
            break
        members, counts = np.argsort(labels, kind="stable"), np.bincount(labels, minlength=k)
        np.cumsum(counts, out=starts[1:])
        each(add, _blocks(k, max(1, points.size // k)))
        # An empty cluster takes half of the largest one; their centroids differ by APART.
        for empty in np.flatnonzero(counts == 0):
            largest = int(counts.argmax())
            apart = np.where(np.arange(points.shape[1]) % 2, 1 - APART, 1 + APART)
            sums[empty], sums[largest] = sums[largest] * apart / 2, sums[largest] * (2 - apart) / 2
            counts[empty] = counts[largest] // 2
            counts[largest] -= counts[empty]
        sizes = np.linalg.norm(sums, axis=1) if not euclidean else counts
        centroids = np.divide(
            sums, sizes[:, np.newaxis], where=sizes[:, np.newaxis] > 0, out=np.zeros_like(sums)
        ).astype(np.float32)
    total = float(scores.sum(dtype=np.float64))
    return centroids, iteration, (squares - 2 * total if euclidean else total) / len(points)


def _minibatch(
    points: NDArray[np.float32], k: int, seed: int, metric: Metric
) -> tuple[NDArray[np.float32], int, float]:
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    # Batches are too small for several threads.
    with threadpool_limits(limits=1):
        kmeans = MiniBatchKMeans(
            k, random_state=small_seed(seed), batch_size=BATCH_POINTS, n_init=BATCH_RESTARTS
        ).fit(points)
    centroids, inertia = kmeans.cluster_centers_, float(kmeans.inertia_) / len(points)
    if metric == "euclidean":
        return centroids.astype(np.float32), int(kmeans.n_iter_), inertia
    lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
    centroids = np.divide(centroids, lengths, out=np.zeros_like(centroids), where=lengths > 0).astype(
        np.float32
    )
    # For unit points, inertia is the sum of |x - m|^2 = 2 - 2 cos where m has length 1.
    return centroids, int(kmeans.n_iter_), 1.0 - inertia / 2


def _largest_first(fitted: ClusterFit, sample: NDArray[np.float32]) -> ClusterFit:
    """The clusters that are not empty by falling size, with the sizes and mean distance of the fitted sample (unit
    vectors or zeros with the metric cosine)."""
    labels, distances = assign(sample, fitted)
    # Vectors without a direction belong to the largest cluster, so they must not decide which cluster that is.
    directed = sample.any(axis=1) | (fitted.metric == "euclidean")
    sizes = np.bincount(labels[directed], minlength=len(fitted.centroids))
    order = np.argsort(-sizes, kind="stable")[: max(1, np.count_nonzero(sizes))]
    empty = len(sizes) - len(order)
    if empty:
        fitted = replace(fitted, note=f"{len(order)} clusters of {len(sizes)}: {empty} ended up empty")
    return replace(
        fitted,
        centroids=np.ascontiguousarray(fitted.centroids[order]),
        sizes=sizes[order] + np.where(order == order[0], len(sample) - int(directed.sum()), 0),
        mean_distance=float(distances.mean(dtype=np.float64)),
    )
