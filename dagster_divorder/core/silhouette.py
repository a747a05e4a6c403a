"""The silhouette of a clustering under cosine distance, exact, without looking at pairs of vectors.

Letters: N vectors, n of a batch, D dims, K clusters.

A vector x is seen as a clustering sees it, as the direction u = (x - centre) / |x - centre|. The mean cosine distance
of u to the vectors of a cluster is 1 - u . S / n, with S the sum of their directions and n their number, so K sums
stand for N vectors. The silhouette holds the distance to the own cluster, u left out, against that to the nearest
other one: 1 says that a vector is alone with its like, 0 that it lies between two clusters, -1 that it is in the wrong
one.

Guarantee: the silhouette of scikit-learn's `silhouette_samples(metric="cosine")`, in float64. The bytes depend on the
vectors, their labels and their order alone, not on batches or threads. A vector alone in its cluster has 0, and so has
one without a direction (a zero vector, or one at the centre): it is as far, 1, from all, itself included.
Cost: two passes over the vectors, O(N K D) at the speed of a float32 matrix product; O(K D) memory and BLOCK_SCORES
float32 of scratch.
Source: Rousseeuw 1987, "Silhouettes".
Known weakness: distances below 1e-12 count as 0; high-dimensional text has silhouettes near 0 even where clusters mean
something, so compare them with each other, not with 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.cluster import BLOCK_SCORES
from dagster_divorder.errors import InputError

Batch = tuple[NDArray[np.float32], NDArray[np.integer]]


@dataclass(frozen=True, eq=False)
class Silhouette:
    """mean: of all vectors. by_cluster: float64 (K,), of each cluster's, 0 where it is empty. sizes: int64 (K,)."""

    mean: float
    by_cluster: NDArray[np.float64]
    sizes: NDArray[np.int64]


def silhouette(
    passes: Callable[[], Iterator[Batch]], clusters: int, centre: NDArray[np.float32] | None = None
) -> Silhouette:
    """Silhouette of vectors in K = `clusters` clusters.

    passes: called twice, gives the same batches of vectors float32 (n, D) and labels int (n,) in [0, clusters).
    centre: float32 (D,), what the vectors are seen from, such as `ClusterFit.centre`; by default the origin.

    Raises:
        InputError: no vector, NaN or infinity, shapes that do not fit, a label that is none.
    """
    sums: ClusterSums | None = None
    for vectors, labels in passes():
        if sums is None:
            sums = ClusterSums(
                clusters, np.zeros(vectors.shape[-1], np.float32) if centre is None else centre
            )
        sums.add(vectors, labels)
    if sums is None:
        raise InputError("there is no vector; expected at least one")
    scores = Scores(sums)
    for vectors, labels in passes():
        scores.add(vectors, labels)
    return scores.result()


class ClusterSums:
    """The first pass: `sums` float64 (K, D) of directions and `sizes` int64 (K,) of clusters, seen from a centre.

    With `Scores`, for several clusterings of the same vectors in two passes together; `silhouette` does it for one.
    """

    def __init__(self, clusters: int, centre: NDArray[np.float32]) -> None:
        self.centre = np.ascontiguousarray(centre, np.float32)
        self.sums = np.zeros((clusters, len(centre)))
        self.sizes = np.zeros(clusters, np.int64)

    def add(self, vectors: NDArray[np.float32], labels: NDArray[np.integer]) -> None:
        """Count in a batch, as for `silhouette`."""
        from dagster_divorder.core.kernels.silhouette import add_directions

        vectors, labels = self.checked(vectors, labels)
        seen = int(self.sizes.sum())
        bad = add_directions(vectors, labels, self.centre, self.sums, self.sizes)
        if bad >= 0:
            raise InputError(
                f"vector {seen + bad} holds NaN or infinity; expected finite numbers: embed it again"
            )

    def checked(
        self, vectors: NDArray[np.float32], labels: NDArray[np.integer]
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """A batch, laid out as the kernels read it. InputError where it does not fit."""
        clusters, dims = self.sums.shape
        if vectors.ndim != 2 or vectors.shape[1] != dims or labels.shape != (len(vectors),):
            raise InputError(
                f"vectors have the shape {vectors.shape} and labels {labels.shape}; expected (n, {dims}) and (n,)"
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < clusters:
            raise InputError(
                f"labels run from {labels.min()} to {labels.max()}; expected them in [0, {clusters})"
            )
        return np.ascontiguousarray(vectors, np.float32), np.ascontiguousarray(labels, np.int32)


class Scores:
    """The second pass, over the same vectors."""

    def __init__(self, of: ClusterSums) -> None:
        means = of.sums / np.maximum(of.sizes, 1)[:, np.newaxis]
        self._of = of
        self._means = means.astype(np.float32)
        self._offsets = means @ of.centre.astype(np.float64)
        self._totals = np.zeros(len(of.sizes))

    def add(self, vectors: NDArray[np.float32], labels: NDArray[np.integer]) -> None:
        """Score a batch."""
        from dagster_divorder.core.kernels.silhouette import add_silhouettes

        of = self._of
        vectors, labels = of.checked(vectors, labels)
        step = max(1, BLOCK_SCORES // len(self._means))
        for first in range(0, len(vectors), step):
            rows = slice(first, first + step)
            add_silhouettes(
                vectors[rows],
                labels[rows],
                vectors[rows] @ self._means.T,
                of.centre,
                self._offsets,
                of.sums,
                of.sizes,
                self._totals,
            )

    def result(self) -> Silhouette:
        """Of all that was scored."""
        sizes = self._of.sizes
        return Silhouette(
            mean=float(self._totals.sum() / max(1, sizes.sum())),
            by_cluster=self._totals / np.maximum(sizes, 1),
            sizes=sizes,
        )
