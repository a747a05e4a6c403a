"""How many clusters: several numbers tried on one corpus, and the one to take.

Letters: N vectors, n of a batch, D dims, K clusters, V values of k, F fits of each.

The silhouette tells how far clusters stand apart, and falls where k cuts topics in two; an order wants many clusters,
since it mixes only what it can tell apart. So of the values whose silhouette is as good as the best, the highest is
taken. As good is at most CLOSE of the best below it.

k-means finds a local optimum, so that another seed and other documents give another silhouette, by about as much as
CLOSE of it. Each value is therefore fitted F times, from other seeds and other documents; their mean counts, and their
spread says whether to trust it. One standard deviation stands for all values, since that of a handful of fits says
little: s^2, the mean of the values' variances. A mean less a threshold taken from another mean has the standard error
s sqrt(2 / F). Where ERRORS of these more or less tolerance would lead to a number more than a step away, or the best
silhouette is below NEAR_ZERO, no number is clear.

Cost: two passes over the vectors for all fits together, each O(N D sum of K) at the speed of a matrix product; 2 F V
bytes a vector for the labels.
Sources: Rousseeuw 1987 (choosing k by the silhouette); Diversity-Ordered Training (`--calibrate-k`, within 5 % of the
peak); Breiman, Friedman, Olshen and Stone 1984 (the error of a mean as a tolerance).
Known weakness: clusters of a handful of vectors have high silhouettes again, near copies that stand apart: leave such
values out. Values closer to each other than the fits can tell make a clear number rare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.topics.cluster import ClusterFit, assign
from dagster_divorder.core.topics.silhouette import ClusterSums, Silhouette

CLOSE = 0.05
ERRORS = 2
NEAR_ZERO = 0.02
"""Silhouettes below this hardly tell clusters apart; their tolerance is that of this one, 0.001."""
USUAL = 30
"""Clusters where the calibration finds no clear number, or nobody has said: the default of `clusters.k`."""

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
    for places, batch in batches():
        chosen = places < sample
        sampled = _rows(batch, chosen)
        for row, cluster_sums, fit in zip(labels, sums, fits, strict=True):
            assigned, _ = assign(batch, fit)
            row[places] = assigned
            cluster_sums.add(sampled, _rows(assigned, chosen))
            advance(len(batch))
    for places, batch in batches():
        chosen = places < sample
        sampled = _rows(batch, chosen)
        for row, cluster_sums in zip(labels, sums, strict=True):
            cluster_sums.score(sampled, row[places[chosen]])
            advance(len(batch))
    return [Clustered(row, cluster_sums.result()) for row, cluster_sums in zip(labels, sums, strict=True)]


def possible(values: Sequence[int], vectors: int) -> tuple[int, ...]:
    """The values of k, rising, that do not exceed the number of vectors; that number itself where all do."""
    return tuple(k for k in values if k <= vectors) or (max(1, vectors),)


def as_good_as(best: float) -> float:
    """The lowest silhouette that is as good as the best one (see above)."""
    return best - CLOSE * max(best, NEAR_ZERO)


def recommended(values: Sequence[int], silhouettes: NDArray[np.float64]) -> tuple[int, str]:
    """Index of the highest of the rising `values` (V,) whose mean silhouette is as good as the best, and why that is no
    clear number, "" where it is. silhouettes: float64 (V, F), F >= 2."""
    mean, fits = silhouettes.mean(axis=1), silhouettes.shape[1]
    best = float(mean.max())
    error = ERRORS * math.sqrt(2 / fits * silhouettes.var(axis=1, ddof=1).mean())
    fewest, chosen, most = (
        int(np.flatnonzero(mean >= min(best, as_good_as(best) + more))[-1]) for more in (error, 0.0, -error)
    )
    if best < NEAR_ZERO:
        return (
            chosen,
            f"the best silhouette is {best:.3f}, and under {NEAR_ZERO} hardly any cluster stands apart",
        )
    if max(most - chosen, chosen - fewest) > 1:
        return (
            chosen,
            f"by {fits} fits of each, anything from {values[fewest]:,} to {values[most]:,} may be as good",
        )
    return chosen, ""


def _rows(array: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[Any]:
    return array if chosen.all() else array[chosen]
