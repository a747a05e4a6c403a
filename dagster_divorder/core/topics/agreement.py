"""Two spaces of vectors of the same documents, compared by their clusters. For two files of your own:

    compare(np.load("shallow.npy"), np.load("deep.npy"), k=30).figures

Letters: n documents, D dims, W words.
Sources: Hubert and Arabie 1985 (adjusted Rand index, ARI); Diversity-Ordered Training (its borders and tiers).
Known weakness: noise is another structure, too; `told_by_words` tells it from structure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.topics.cluster import assign, fit
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DIFFERENT, SAME = 0.3, 0.7


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """labels: clusters of the documents in both spaces, int32 (2, n). figures: for people; `chosen` is the space to
    use."""

    labels: NDArray[np.int32]
    figures: dict[str, Any]


def compare(
    first: NDArray[np.floating],
    second: NDArray[np.floating],
    k: int = 30,
    *,
    seed: int = 0,
    centre: tuple[bool, bool] = (True, True),
    names: tuple[str, str] = ("first", "second"),
) -> Agreement:
    """Two spaces, floats (n, D) each with its own D, both clustered into k clusters. Rows are the same documents in the
    same order. centre: whether the mean is subtracted before.

    Raises:
        InputError: the numbers of rows differ, or a vector is not finite.
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    if len(first) != len(second):
        raise InputError(
            f"{len(first):,} and {len(second):,} vectors; expected a row a document in both files"
        )
    spaces = [space.astype(np.float32, copy=False) for space in (first, second)]
    fits = [fit(space, k, seed=seed, centre=mean) for space, mean in zip(spaces, centre, strict=True)]
    labels = np.stack([assign(space, by)[0] for space, by in zip(spaces, fits, strict=True)])
    ari = float(adjusted_rand_score(*labels))
    overlap, chosen, why = conclude(ari, *names)
    figures = {
        "chosen": chosen,
        "conclusion": why,
        "overlap": overlap,
        "ari": ari,
        "nmi": float(normalized_mutual_info_score(*labels)),
        "measured_documents": len(first),
    }
    return Agreement(labels, figures)


def conclude(ari: float, first: str, second: str) -> tuple[str, str, str]:
    """(overlap of two spaces' structure, the space to use, why), by the rule of Diversity-Ordered Training."""
    if ari < DIFFERENT:
        overlap, chosen = "low", second
        says = f"under {DIFFERENT}: the {second} space shows other structure and is likely worth using"
    elif ari > SAME:
        overlap, chosen = "high", first
        says = f"over {SAME}: the {second} space shows much the same structure, at a higher cost"
    else:
        overlap, chosen = "moderate", first
        says = f"from {DIFFERENT} to {SAME}: the {second} space shows some other structure"
        says += "; only training tells its worth"
    return overlap, chosen, f"ARI {ari:.3f}, {says}."


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
