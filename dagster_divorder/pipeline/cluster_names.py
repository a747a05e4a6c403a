"""Names of clusters, made with their fit and kept with it: a name changes only when the clusters do.

The sample is of the documents that the clusters were fitted to, by rising id, as many of each cluster as of the others
while it has so many.
"""

from __future__ import annotations

import numpy as np
import orjson

from dagster_divorder.core.terms import characteristic_terms, count_words, short_names
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.sample import beginnings
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.view import View

FILE = "names.json"

DOCUMENTS = 6_000
PER_CLUSTER = 4
MOST_DOCUMENTS = 1 << 16
CHARACTERS = 2_048
"""The sample: so many documents in all, or of a cluster where there are more than a thousand, each with so many of its
first characters. More of them cost time and change few names."""


def sample_size(clusters: int) -> int:
    """Documents that names of so many clusters are made from."""
    return min(MOST_DOCUMENTS, max(DOCUMENTS, PER_CLUSTER * clusters))


def name_clusters(
    store: LocalStore, view: View, rows: np.ndarray, labels: np.ndarray, clusters: int
) -> bytes:
    """The names of K clusters, as a file of their fit. rows int64 (n,): documents by rising id; labels int (n,)."""
    chosen = _evenly(labels, sample_size(clusters))
    words = count_words(beginnings(store, view, rows[chosen], CHARACTERS))
    terms = characteristic_terms(words, labels[chosen], clusters)
    return orjson.dumps({"names": short_names(terms), "terms": terms})


def load_names(run: Run) -> list[str]:
    """Names of the clusters, by label; no two are the same."""
    return names_in(run.store, run.receipt("clusters").files["fit"])


def names_in(store: LocalStore, fit: str) -> list[str]:
    """Names of the clusters of a fit, by label; `fit` is its folder, as receipts name it."""
    names: list[str] = orjson.loads(store.read(f"{fit}/{FILE}"))["names"]
    return names


def _evenly(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices, rising, of at most `count` documents: the first of every cluster, then the second, and so on."""
    by_label = np.argsort(labels, kind="stable")
    ordered = labels[by_label]
    rank = np.empty_like(by_label)
    rank[by_label] = np.arange(len(labels)) - np.searchsorted(ordered, ordered)
    return np.sort(np.argsort(rank, kind="stable")[:count])
