"""How many clusters: several numbers tried on one corpus, and the one to take.

Letters: N vectors, n of a batch, D dims, K clusters, V values of k.

The silhouette tells how far clusters stand apart, and falls where k cuts topics in two; an order wants many clusters,
since it mixes only what it can tell apart. So of the values whose silhouette is as good as the best, the highest is
taken. As good is at most CLOSE of the best below it, and CLOSE x NEAR_ZERO where the best is below NEAR_ZERO: near 0 a
share of it is no tolerance, and below 0 it would be a demand to be better.

Cost: two passes over the vectors for all V values together, each O(N D sum of K) at the speed of a matrix product; 2 V
bytes a vector for the labels.
Sources: Rousseeuw 1987 (choosing k by the silhouette); Diversity-Ordered Training (`--calibrate-k`, within 5 % of the
peak).
Known weakness: k-means from another seed gives another silhouette, by as much as CLOSE of it (docs/decisions). What is
measured is the clustering that the same sample and seed give again, not k as such. Clusters of a handful of vectors
have high silhouettes again, near copies that stand apart: leave such values out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.cluster import ClusterFit, assign
from dagster_divorder.core.silhouette import ClusterSums, Silhouette

CLOSE = 0.05
NEAR_ZERO = 0.02
"""Silhouettes below this hardly tell clusters apart; their tolerance is that of this one, 0.001."""

Batch = tuple[NDArray[np.int64], NDArray[np.float32]]
LABEL = np.int16
"""Holds every label of at most 10,000 clusters."""


@dataclass(frozen=True, eq=False)
class Clustered:
    """labels: LABEL (N,), by place. silhouette: of the first `sample` places."""

    labels: NDArray[Any]
    silhouette: Silhouette


def measure(
    fits: Sequence[ClusterFit],
    batches: Callable[[], Iterator[Batch]],
    vectors: int,
    sample: int,
    advance: Callable[[int], object] = lambda n: None,
) -> list[Clustered]:
    """Every vector assigned to the clusters of every fit, and the silhouettes of the first `sample` ones.

    batches: called twice, gives each of `vectors` vectors once: places int64 (n,) in [0, N), vectors float32 (n, D);
        the same in the same order. advance: called with the vectors of each batch that a fit is done with, twice.
    """
    labels = np.empty((len(fits), vectors), LABEL)
    sums = [ClusterSums(len(fit.centroids), fit.centre) for fit in fits]
    for places, some in batches():
        chosen = places < sample
        sampled = _rows(some, chosen)
        for row, of, fit in zip(labels, sums, fits, strict=True):
            found, _ = assign(some, fit)
            row[places] = found
            of.add(sampled, _rows(found, chosen))
            advance(len(some))
    for places, some in batches():
        chosen = places < sample
        sampled = _rows(some, chosen)
        for row, of in zip(labels, sums, strict=True):
            of.score(sampled, row[places[chosen]])
            advance(len(some))
    return [Clustered(row, of.result()) for row, of in zip(labels, sums, strict=True)]


def possible(values: Sequence[int], vectors: int) -> tuple[int, ...]:
    """The values of k, rising, that do not exceed the number of vectors; that number itself where all do."""
    return tuple(k for k in values if k <= vectors) or (max(1, vectors),)


def as_good_as(best: float) -> float:
    """The lowest silhouette that is as good as the best one (see above)."""
    return best - CLOSE * max(best, NEAR_ZERO)


def recommended(silhouettes: Sequence[float]) -> int:
    """Index of the last silhouette, of those by rising k, that is as good as the best."""
    least = as_good_as(max(silhouettes))
    return max(at for at, silhouette in enumerate(silhouettes) if silhouette >= least)


def _rows(array: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[Any]:
    return array if chosen.all() else array[chosen]
