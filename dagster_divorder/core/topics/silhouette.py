"""The exact silhouette of a clustering under cosine distance, computed without pairs of vectors.

Letters: N vectors, n of a batch, D dims, K clusters.

A vector x is used as the direction u = (x - centre) / |x - centre|. The mean cosine distance of u to a cluster is
1 - u . S / n, with S the sum of its n directions, so K sums stand for N vectors. The silhouette compares the distance
to the own cluster, without u, with the distance to the nearest other one: 1 for a well separated vector, 0 between two
clusters, -1 in the wrong one.

Guarantee: equals scikit-learn's `silhouette_samples(metric="cosine")` in float64, rounded to DECIMALS, since batches
and threads change the last bits of a product. It is 0 for a vector alone in its cluster and for a vector at the centre,
whose distance to every vector is 1.
Cost: two passes over the vectors, O(N K D) at the speed of a matrix product; O(K D) memory and BLOCK_SCORES float64 of
scratch.
Source: Rousseeuw 1987, "Silhouettes".
Known weakness: distances below 1e-12 count as 0. High-dimensional text has silhouettes near 0 even for meaningful
clusters, so compare them with each other, not with 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.topics.cluster import BLOCK_SCORES
from dagster_divorder.core.vectors.unit import NO_DIRECTION
from dagster_divorder.errors import InputError

Batch = tuple[NDArray[np.float32], NDArray[np.integer]]

DECIMALS = 9
ROUNDING = 1e-12
"""Mean distances below this are rounding noise around 0."""


@dataclass(frozen=True, eq=False)
class Silhouette:
    """mean: over all vectors. by_cluster: float64 (K,), mean of a cluster, 0 if empty. sizes: int64 (K,)."""

    mean: float
    by_cluster: NDArray[np.float64]
    sizes: NDArray[np.int64]


def silhouette(
    passes: Callable[[], Iterator[Batch]], clusters: int, centre: NDArray[np.float32] | None = None
) -> Silhouette:
    """Silhouette of vectors in K = `clusters` clusters.

    passes: called twice; each call gives the same batches of vectors float32 (n, D) and labels int (n,) in
        [0, clusters). centre: float32 (D,), such as `ClusterFit.centre`; None: the origin.

    Raises:
        InputError: there is no vector, or NaN or infinity; shapes do not match; a label is out of range.
    """
    sums: ClusterSums | None = None
    for vectors, labels in passes():
        if sums is None:
            sums = ClusterSums(clusters, np.zeros(vectors.shape[-1]) if centre is None else centre)
        sums.add(vectors, labels)
    if sums is None:
        raise InputError("there is no vector; expected at least one")
    for vectors, labels in passes():
        sums.score(vectors, labels)
    return sums.result()


class ClusterSums:
    """The silhouette of one clustering, batch by batch: `add` every batch, then `score` every batch, then `result`.

    Several clusterings of the same vectors can share the two passes.
    """

    def __init__(self, clusters: int, centre: NDArray[np.floating]) -> None:
        self._centre = centre.astype(np.float64)
        self._sums = np.zeros((clusters, len(centre)))
        self._sizes = np.zeros(clusters, np.int64)
        self._totals = np.zeros(clusters)

    def add(self, vectors: NDArray[np.float32], labels: NDArray[np.integer]) -> None:
        """First pass over a batch; arguments as in `silhouette`."""
        from scipy.sparse import csr_array

        clusters, dims = self._sums.shape
        if vectors.ndim != 2 or vectors.shape[1] != dims or labels.shape != (len(vectors),):
            raise InputError(
                f"vectors have the shape {vectors.shape} and labels {labels.shape}; expected (n, {dims}) and (n,)"
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < clusters:
            raise InputError(
                f"labels run from {labels.min()} to {labels.max()}; expected them in [0, {clusters})"
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            raise InputError(
                f"vector {int(self._sizes.sum() + finite.argmin())} holds NaN or infinity; "
                "expected finite numbers: embed it again"
            )
        for rows in self._blocks(len(vectors)):
            n = rows.stop - rows.start
            members = csr_array((np.ones(n), labels[rows], np.arange(n + 1)), (n, clusters))
            self._sums += members.T @ self._directions(vectors[rows])
        self._sizes += np.bincount(labels, minlength=clusters)

    def score(self, vectors: NDArray[np.float32], labels: NDArray[np.integer]) -> None:
        """The second pass over the same batch."""
        sizes = self._sizes
        if np.count_nonzero(sizes) < 2:
            return
        means = self._sums / np.maximum(sizes, 1)[:, np.newaxis]
        for rows in self._blocks(len(vectors)):
            units, own = self._directions(vectors[rows]), labels[rows]
            cosines = units @ means.T
            itself = np.einsum("nd,nd->n", units, units)
            own_cosine = (cosines[np.arange(len(own)), own] * sizes[own] - itself) / np.maximum(
                sizes[own] - 1, 1
            )
            cosines[:, sizes == 0] = -np.inf
            cosines[np.arange(len(own)), own] = -np.inf
            a, b = 1.0 - own_cosine, 1.0 - cosines.max(axis=1)
            a[a < ROUNDING], b[b < ROUNDING] = 0.0, 0.0
            larger = np.maximum(a, b)
            scored = (sizes[own] > 1) & (larger > 0)
            scores = np.divide(b - a, larger, out=np.zeros_like(a), where=scored)
            self._totals += np.bincount(own, scores, len(sizes))

    def result(self) -> Silhouette:
        """The silhouette of all scored vectors."""
        return Silhouette(
            mean=round(float(self._totals.sum() / max(1, self._sizes.sum())), DECIMALS),
            by_cluster=(self._totals / np.maximum(self._sizes, 1)).round(DECIMALS),
            sizes=self._sizes,
        )

    def _blocks(self, rows: int) -> Iterator[slice]:
        step = max(1, BLOCK_SCORES // max(self._sums.shape))
        return (slice(first, min(first + step, rows)) for first in range(0, rows, step))

    def _directions(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Unit vectors from the centre, float64 (n, D); zero for a vector at the centre."""
        points = vectors - self._centre
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        directed = lengths > NO_DIRECTION * np.linalg.norm(self._centre)
        return np.divide(points, lengths, out=np.zeros_like(points), where=directed)
