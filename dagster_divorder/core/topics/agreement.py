"""Two clusterings of the same documents compared.

Letters: n documents, W words, K and J clusters.
Sources: Hubert and Arabie 1985 (adjusted Rand index); Diversity-Ordered Training (its borders, and what they mean).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DIFFERENT, SAME = 0.3, 0.7


def overlap(ari: float) -> str:
    """The overlap of two spaces' structure, as Diversity-Ordered Training calls it: "high", "moderate" or "low"."""
    return "high" if ari > SAME else "low" if ari < DIFFERENT else "moderate"


def match(table: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One-to-one pairs of clusters (k, j), int64 (min(K, J),) each, that together hold the most documents of `table`
    int (K, J); sorted by falling number of documents."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table, maximize=True)
    order = np.argsort(-table[rows, columns], kind="stable")
    return rows[order], columns[order]


def told_by_words(counts: csr_array, labels: NDArray[np.integer]) -> float:
    """How well the words of a document tell its cluster: the adjusted mutual information of the clusters and of those
    that naive Bayes predicts, one half of the documents from the other. 1: always; 0: as chance does. Clusters by
    noise, length or layout have low values.

    counts: uses of words, int (n, W), documents in a random order. labels: int (n,).
    """
    from sklearn.metrics import adjusted_mutual_info_score
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.naive_bayes import MultinomialNB

    if len(labels) < 2:
        return 0.0
    predicted = cross_val_predict(MultinomialNB(), counts > 0, labels, cv=KFold(2))
    return float(adjusted_mutual_info_score(labels, predicted))
