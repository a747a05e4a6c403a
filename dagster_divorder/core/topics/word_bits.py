"""Bits that a clustering saves on the words of its documents: a measure of clusterings without labels.

Letters: n documents, W words, K clusters.

One half of the documents gives p(w), and p(w | c) for each cluster, smoothed towards p(w) by the amount that saves the
most. On the other half, log2 p(w | c) / p(w) are the bits that the cluster c saves on a word w, averaged over the
distinct words of each document. Then the halves change places. Clusters of single documents, noise, length or layout
save little.

Guarantee: at least 0; the same documents in the same order give the same bits.
Cost: O(words of all documents), some ten passes.
Sources: Zhai and Lafferty 2004 (Dirichlet smoothing); Rissanen 1983 (bits saved as a measure of structure).
Known weakness: clusters of style or quality save fewer bits than topics do. Measurements:
docs/decisions/ari-comparison.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SMOOTHING = tuple(10.0 ** (half / 2) for half in range(4, 12))
"""Amounts of smoothing, in words of the whole corpus that are added to a cluster: 100 to some 300,000."""


def word_bits(counts: csr_array, labels: NDArray[np.integer], clusters: int) -> float:
    """Bits a word that the clusters save. counts: int (n, W), documents in a random order; labels: int (n,) in
    [0, clusters)."""
    saved, words = np.zeros(len(SMOOTHING)), 0
    halves = np.arange(len(labels)) % 2
    for half in range(2):
        more, held_out = _saved(counts, labels, clusters, halves == half)
        saved, words = saved + more, words + held_out
    return max(0.0, float(saved.max())) / max(1, words)


def _saved(
    counts: csr_array, labels: NDArray[np.integer], clusters: int, held_out: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], int]:
    """(bits saved on the words of the held-out documents, float64 for each smoothing; the number of these words)."""
    from scipy.sparse import csr_array

    documents, vocabulary = counts.shape
    used = csr_array((np.ones(counts.nnz, np.int64), counts.indices, counts.indptr), shape=counts.shape)
    counted = np.flatnonzero(~held_out)
    of_cluster = csr_array(
        (np.ones(len(counted), np.int64), (labels[counted], counted)), shape=(clusters, documents)
    )
    by_cluster = of_cluster @ used
    by_cluster.sort_indices()
    whole = np.bincount(by_cluster.indices, by_cluster.data, vocabulary)
    sizes: NDArray[np.int64] = by_cluster.sum(axis=1)
    tested = used[np.flatnonzero(held_out)]
    cluster = labels[held_out].repeat(np.diff(tested.indptr)).astype(np.int64)
    # Words that were not counted have p(w) = 0.
    known = whole[tested.indices] > 0
    cluster, word = cluster[known], tested.indices[known]
    if not len(word):
        return np.zeros(len(SMOOTHING)), 0
    key = np.arange(clusters).repeat(np.diff(by_cluster.indptr)) * vocabulary + by_cluster.indices
    wanted = cluster * vocabulary + word
    at = np.searchsorted(key, wanted).clip(max=len(key) - 1)
    own = np.where(key[at] == wanted, by_cluster.data[at], 0)
    share, size = whole[word] / whole.sum(), sizes[cluster]
    saved = [np.log2((own + more * share) / ((size + more) * share)).sum() for more in SMOOTHING]
    return np.array(saved), len(word)
