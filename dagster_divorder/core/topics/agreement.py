"""How far two clusterings of the same documents agree, and where they do not.

Letters: N documents, K and J clusters.
Guarantee: scikit-learn's figures, exact but for AMI, see there; matching is optimal (SciPy's Hungarian method).
Cost: O(N) for the contingency table, ARI and NMI; O(N max(K, J)) for AMI, at most AMI_STEPS; O(L^3) for matching, L the
clusters of either that are matched.
Sources: Hubert and Arabie 1985 (ARI); Vinh, Epps and Bailey 2010 (AMI, NMI); Kuhn 1955, Crouse 2016 (matching).
Known weakness: ARI depends on the sizes of clusters; it is low, too, where one clustering is much finer.
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
"""About a second. AMI of more documents is that of the first ones, which have to be a random sample of all."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """1 where two clusterings are the same; ari and ami 0, on average, where one is drawn at random, nmi above 0."""

    ari: float
    ami: float
    nmi: float


def agreement(a: Labels, b: Labels) -> Agreement:
    """Agreement of labels int (N,) with others of the same documents, in a random order.

    Raises:
        InputError: there are no labels, or not as many of both.
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
    """Cosine of each row of a with the same row of b, both (N, D), float64 (N,); 0 where one has no direction."""
    wide = [np.asarray(rows, np.float64) for rows in (a, b)]
    lengths = np.prod([np.linalg.norm(rows, axis=1) for rows in wide], axis=0)
    dots = np.einsum("ij,ij->i", *wide)
    return np.clip(np.divide(dots, lengths, out=np.zeros(len(a)), where=lengths > 0), -1.0, 1.0)


def contingency(a: Labels, b: Labels, shape: tuple[int, int]) -> csr_array:
    """Documents that have cluster k of one clustering and j of the other, int64 (K, J)."""
    from scipy.sparse import csr_array

    table = csr_array((np.ones(len(a), np.int64), (a, b)), shape=shape)
    table.sum_duplicates()
    return table


def match(table: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of clusters (k, j), int64 (min(K, J),) each, none twice, that hold most documents of table int (K, J)
    together; the pair with the most documents first."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table, maximize=True)
    order = np.argsort(-table[rows, columns], kind="stable")
    return rows[order], columns[order]
