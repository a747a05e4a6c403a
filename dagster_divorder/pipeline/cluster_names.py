"""Names of clusters, a pinned fit of their own under that of the clusters: a name changes only when the clusters do.

They are made when the clusters first have their documents, and again once `divorder prune` has taken away documents
whose words may be in them. The sample is of the documents with the smallest ids, as many of each cluster as of the
others while it has so many.
"""

from __future__ import annotations

import numpy as np
import orjson

from dagster_divorder.core.cluster import POINTS_PER_CENTROID
from dagster_divorder.core.terms import characteristic_terms, count_words, short_names
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.sample import beginnings, document_index, rows_by_id
from dagster_divorder.store.fits import PINS, RECORDS, Fit, drop_unpinned, pin, pinned, read_fit, read_pin
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.view import View

STAGE = "cluster_names"
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


def name_clusters(store: LocalStore, view: View, clusters: Fit, labels: np.ndarray, count: int) -> Fit:
    """The pinned names of `count` clusters, made where there are none yet. labels int (document rows,)."""
    if found := load_pin(store, clusters):
        return found
    ids, _ = document_index(store, view)
    # Of so many documents every cluster has some, and its share of those that are read.
    rows = rows_by_id(ids, view)[: min(4 * sample_size(count), POINTS_PER_CENTROID * count)]
    rows = rows[_evenly(labels[rows], sample_size(count))]
    words = count_words(beginnings(store, view, rows, CHARACTERS))
    terms = characteristic_terms(words, labels[rows], count)
    file = orjson.dumps({"names": short_names(terms), "terms": terms})
    return pin(store, STAGE, clusters.hash, {FILE: file}, "the clusters had no names yet")


def load_pin(store: LocalStore, clusters: Fit) -> Fit | None:
    """The pinned names of the clusters of a fit, None if there are none yet."""
    found = pinned(store, STAGE, clusters.hash)
    if found:
        read_fit(store, found)  # it is there, and whole
    return found


def unpin_names(store: LocalStore, clusters: Fit) -> None:
    """Remove the names of the clusters of a fit."""
    named = read_pin(store, f"{PINS}/{STAGE}/{clusters.hash}.json")
    for folder in (RECORDS, PINS):
        store.delete(f"{folder}/{STAGE}/{clusters.hash}.json")
    if named:
        drop_unpinned(store, named)


def load_names(run: Run) -> list[str]:
    """Names of the clusters, by label; no two are the same."""
    return names_in(run.store, run.receipt("clusters").files["names"])


def names_in(store: LocalStore, fit: str) -> list[str]:
    """Names of clusters by label; `fit` is the folder of their names, as the receipt of clusters has it."""
    names: list[str] = orjson.loads(store.read(f"{fit}/{FILE}"))["names"]
    return names


def _evenly(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices, rising, of at most `count` documents: the first of every cluster, then the second, and so on."""
    by_label = np.argsort(labels, kind="stable")
    ordered = labels[by_label]
    rank = np.empty_like(by_label)
    rank[by_label] = np.arange(len(labels)) - np.searchsorted(ordered, ordered)
    return np.sort(np.argsort(rank, kind="stable")[:count])
