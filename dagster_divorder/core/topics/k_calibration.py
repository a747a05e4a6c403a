"""The number of clusters: several values tried on one corpus, and the one to take.

Letters: N vectors, n of a batch, D dims, K clusters, V values of k, F fits of each.

The silhouette measures how well clusters are separated, and falls if k splits topics. An order gains from many
clusters, because it mixes only what it can distinguish. So the highest k is taken whose silhouette is within the
fraction CLOSE of the best.

k-means finds a local optimum, so another seed and another sample change the silhouette by about CLOSE. Each value is
therefore fitted F times with other seeds and samples, and the mean is compared. The standard deviation s is pooled, as
a handful of fits says little: s^2 is the mean of the values' variances. The difference of a mean and a threshold that
comes from another mean has the standard error s sqrt(2 / F). No number is clear if ERRORS standard errors more or less
tolerance would choose a value more than a step away, or if the best silhouette is below NEAR_ZERO.

Cost: two passes over the vectors for all fits together, each O(N D sum of K) at the speed of a matrix product; 2 F V
bytes a vector for the labels.
Sources: Rousseeuw 1987 (choosing k by the silhouette); Diversity-Ordered Training (`--calibrate-k`, within 5 % of the
peak); Breiman, Friedman, Olshen and Stone 1984 (the error of a mean as a tolerance).
Known weakness: very small clusters (near copies) have high silhouettes again, so leave out values that give them. If
values are closer to each other than the fits can distinguish, a clear number is rare.
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
"""Clusters with a smaller silhouette are hardly separated; the tolerance is at least CLOSE of this, 0.001."""
USUAL = 30
"""Clusters if the calibration finds no clear number; the default of `clusters.k`."""

Batch = tuple[NDArray[np.int64], NDArray[np.float32]]
LABEL = np.int16
"""Type of labels; wide enough for 10,000 clusters."""


@dataclass(frozen=True, eq=False)
class Clustered:
    """labels: LABEL (N,), by document. silhouette: over the first `sample` documents."""

    labels: NDArray[Any]
    silhouette: Silhouette


def measure(
    fits: Sequence[ClusterFit],
    batches: Callable[[], Iterator[Batch]],
    vectors: int,
    sample: int,
    advance: Callable[[int], object] = lambda n: None,
) -> list[Clustered]:
    """Labels of all vectors under every fit, and the silhouettes of the first `sample` vectors.

    batches: called twice; each call gives all `vectors` vectors once, in the same order, as (places int64 (n,) in [0,
        N), vectors float32 (n, D)). advance: called twice for each batch and fit, with the number of vectors.
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
    """The values of k that do not exceed the number of vectors, rising; that number itself if all do."""
    return tuple(k for k in values if k <= vectors) or (max(1, vectors),)


def as_good_as(best: float) -> float:
    """The lowest silhouette that counts as good as the best one."""
    return best - CLOSE * max(best, NEAR_ZERO)


def recommended(values: Sequence[int], silhouettes: NDArray[np.float64]) -> tuple[int, str]:
    """(index of the highest of the rising `values` (V,) whose mean silhouette is as good as the best; why the choice is
    not clear, or ""). silhouettes: float64 (V, F), F >= 2."""
    mean, fits = silhouettes.mean(axis=1), silhouettes.shape[1]
    best = float(mean.max())
    error = ERRORS * math.sqrt(2 / fits * silhouettes.var(axis=1, ddof=1).mean())
    fewest, chosen, most = (
        int(np.flatnonzero(mean >= min(best, as_good_as(best) + more))[-1]) for more in (error, 0.0, -error)
    )
    if best < NEAR_ZERO:
        return (
            chosen,
            f"the best silhouette is {best:.3f}, and below {NEAR_ZERO} clusters hardly separate",
        )
    if max(most - chosen, chosen - fewest) > 1:
        return (
            chosen,
            f"by {fits} fits of each, anything from {values[fewest]:,} to {values[most]:,} may be as good",
        )
    return chosen, ""


def _rows(array: NDArray[Any], chosen: NDArray[np.bool_]) -> NDArray[Any]:
    return array if chosen.all() else array[chosen]
