"""Selection of diverse training documents (Spokes), and baselines.

Letters: N vectors of length 1 (or zero), D dims, n candidates `rows` int64 (n,), T steps.

Spokes seeks the weights w >= 0, sum 1, that maximise ln Vendi(w) by exponentiated gradient:
    w_i <- w_i exp(rate dL/dw_i), over their sum, with
    d ln Vendi / dw_i = -z_i' (ln G) z_i - 1,  G = sum_i w_i z_i z_i'.
The documents with the largest weights are selected. A weight is a product over all steps, so its rank shows how much a
vector contributed over the whole ascent; the optimum itself needs at most D (D + 1) / 2 vectors.

Guarantee: the same bytes for any number of threads. With a rate of at most 1 no step lowers the
objective, which is within ln(n) / (rate T) of its maximum after T steps: Vendi's entropy is 1-smooth relative to the
weights' entropy, because no channel increases a relative entropy (Blahut and Arimoto's algorithm for a quantum
channel).
Cost: 3 N D^2 multiplications and D^3 a step: a pass updates weights and sums up the next Gram matrix. Vectors are read
in blocks; 50 bytes a candidate.
Sources: Spokes: Optimizing for Diverse Pretraining Data Selection (2026); SemDeDup (Abbas et al. 2023); Nagaoka 1998
(the channel). Known weakness: the selection takes the largest weights; it is not the optimal set of its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.vendi import (
    TINIEST,
    Floats,
    Rows,
    Vectors,
    each_block,
    entropy,
    gram,
    spectrum,
    sum_products,
)
from dagster_divorder.core.mix.mixing import first_fit
from dagster_divorder.core.topics.cluster import assign, fit

CLUSTER = 1024
"""Documents in a cluster of SemDeDup, which compares all pairs in a cluster."""
FIT_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Optimum:
    """weights float64 (n,), sum 1; objective float64 (steps + 1,), at the start and after each step."""

    weights: Floats
    objective: Floats


def log_root(values: Floats, axes: Floats) -> NDArray[np.float32]:
    """B float32 (D, D) with |z B|^2 = -z' (ln G) z, from the `spectrum` of G."""
    return (axes * np.sqrt(-np.log(np.clip(values, TINIEST, 1.0)))).astype(np.float32)


def diversity_gradient(block: NDArray[np.float32], root: NDArray[np.float32]) -> Floats:
    """d ln Vendi / dw of vectors (n, D), float64 (n,). root: from `log_root`."""
    image = block @ root
    return np.einsum("nd,nd->n", image, image).astype(np.float64) - 1.0


def spokes(
    vectors: Vectors, rows: Rows, *, steps: int = 20, rate: float = 1.0, tolerance: float = 1e-4
) -> Optimum:
    """Weights of candidates, `rows` int64 (n,) of vectors (N, D).

    Ends after `steps` steps, or when the objective changes by at most `tolerance`.
    """
    # Mean 1 keeps products within the range of float32.
    weights = np.ones(len(rows))
    values, axes = spectrum(gram(vectors, rows, weights))
    objective = [entropy(values)]
    for _ in range(steps):
        # Subtracting the weighted mean of the gradient keeps exponents within float64.
        step = _Step(weights, log_root(values, axes), rate, entropy(values) - 1.0)
        values, axes = spectrum(sum_products(vectors, rows, step))
        weights *= len(rows) / weights.sum()
        objective.append(entropy(values))
        if abs(objective[-1] - objective[-2]) <= tolerance:
            break
    return Optimum(weights / len(rows), np.array(objective))


@dataclass(frozen=True, eq=False, slots=True)
class _Step:
    """Updates the weights of a block in place and scales its vectors for the next Gram matrix. level: subtracted from
    the gradient."""

    weights: Floats
    root: NDArray[np.float32]
    rate: float
    level: float

    def __call__(self, part: slice, block: NDArray[np.float32]) -> NDArray[np.float32]:
        self.weights[part] *= np.exp(self.rate * (diversity_gradient(block, self.root) - self.level))
        return block * np.sqrt(self.weights[part], dtype=np.float32)[:, None]


def semdedup(vectors: Vectors, rows: Rows, *, seed: int = 0) -> Floats:
    """Cosine distance of each candidate to the nearest earlier one in its cluster, float64 (n,); 2 for the first.

    As in SemDeDup, k-means by cosine on the candidates themselves makes clusters, here of about CLUSTER documents,
    sorted by falling distance to the centroid. SemDeDup with threshold eps keeps the candidates with a distance above
    eps. Above FIT_BYTES of vectors, a sample of the candidates decides the centroids.
    """
    most = max(1, FIT_BYTES // (4 * vectors.shape[1]))
    sample = np.sort(np.random.default_rng(seed).permutation(len(rows))[:most])
    points = vectors[rows[sample]].astype(np.float32, copy=False)
    fitted = fit(points, max(1, len(rows) // CLUSTER), seed=seed, centre=False, most=most)
    parts = list(each_block(vectors, rows, lambda part, block: assign(block, fitted)))
    labels, distances = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    apart = np.full(len(rows), 2.0)
    for label in range(len(fitted.centroids)):
        members = np.flatnonzero(labels == label)
        members = members[np.argsort(-distances[members], kind="stable")]
        points = vectors[rows[members]].astype(np.float32, copy=False)
        for first in range(0, len(members), CLUSTER):
            block = slice(first, first + CLUSTER)
            near = points[block] @ points[: first + CLUSTER].T
            before = np.arange(near.shape[1]) < np.arange(first, first + len(near))[:, None]
            apart[members[block]] = 1.0 - np.max(near, axis=1, where=before, initial=-1.0)
    return apart


def choose(scores: Floats, sizes: NDArray[np.integer], budget: int) -> NDArray[np.bool_]:
    """Chooses items by falling score (n,), ties by position, within a budget of sizes (n,) >= 0; bool (n,). Items that
    exceed the remaining budget are skipped (`first_fit`)."""
    order = np.argsort(-scores, kind="stable")
    chosen = np.zeros(len(scores), bool)
    chosen[order] = first_fit(sizes[order], budget)
    return chosen
