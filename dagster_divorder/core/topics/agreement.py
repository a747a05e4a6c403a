"""Agreement of two clusterings of the same documents.

Letters: N documents, K and J clusters.
Guarantee: scikit-learn's figures, AMI on at most AMI_STEPS / K documents; the matching is optimal (SciPy).
Cost: O(N) for the contingency table, ARI and NMI; O(N max(K, J)) for AMI, at most AMI_STEPS; O(max(K, J)^3) for the
matching.
Sources: Hubert and Arabie 1985 (ARI); Vinh, Epps and Bailey 2010 (AMI, NMI); Kuhn 1955, Crouse 2016 (matching).
Known weakness: ARI depends on cluster sizes, and is low also if one clustering is much finer than the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Labels = NDArray[np.integer]

AMI_STEPS = 1 << 25
"""About a second of work. AMI of more documents uses the first ones, which must be a random sample of all."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Each is 1 for equal clusterings. If one is random, ari and ami are 0 on average, and nmi is above 0."""

    ari: float
    ami: float
    nmi: float


def agreement(a: Labels, b: Labels) -> Agreement:
    """Agreement of two labellings int (N,) of the same documents, in a random order.

    Raises:
        InputError: there are no labels, or their numbers differ.
    """
    from sklearn.metrics import (
        adjusted_mutual_info_score,
        adjusted_rand_score,
        normalized_mutual_info_score,
    )

    if a.shape != b.shape or not len(a):
        raise InputError(
            f"labels have the shapes {a.shape} and {b.shape}; expected the same, and at least one"
        )
    first = slice(AMI_STEPS // (1 + int(max(a.max(), b.max()))) or 1)
    return Agreement(
        ari=float(adjusted_rand_score(a, b)),
        ami=float(adjusted_mutual_info_score(a[first], b[first])),
        nmi=float(normalized_mutual_info_score(a, b)),
    )


def paired_cosines(a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
    """Cosine of each row of a with the same row of b, both (N, D), float64 (N,); 0 if a row is zero."""
    wide = [np.asarray(rows, np.float64) for rows in (a, b)]
    lengths = np.prod([np.linalg.norm(rows, axis=1) for rows in wide], axis=0)
    dots = np.einsum("ij,ij->i", *wide)
    return np.clip(np.divide(dots, lengths, out=np.zeros(len(a)), where=lengths > 0), -1.0, 1.0)


def contingency(a: Labels, b: Labels, shape: tuple[int, int]) -> csr_array:
    """Number of documents in cluster k of `a` and j of `b`, int64 (K, J)."""
    from scipy.sparse import csr_array

    table = csr_array((np.ones(len(a), np.int64), (a, b)), shape=shape)
    table.sum_duplicates()
    return table


def match(table: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One-to-one pairs of clusters (k, j), int64 (min(K, J),) each, that together hold the most documents of `table`
    int (K, J); sorted by falling number of documents."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table, maximize=True)
    order = np.argsort(-table[rows, columns], kind="stable")
    return rows[order], columns[order]
