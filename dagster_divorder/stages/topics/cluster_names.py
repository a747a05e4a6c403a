"""cluster_names: the names of clusters, pinned with their centroids: a name changes only if the clusters do.

Names are made when the clusters first have documents, and again once `divorder prune` has removed documents whose words
may be in them. The sample has the documents with the smallest ids, equally many of each cluster as far as possible.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import orjson

from dagster_divorder.core.topics.cluster import POINTS_PER_CENTROID
from dagster_divorder.corpus.sample import beginnings
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.store.reader import Reader

FILE = "names.json"

DOCUMENTS, PER_CLUSTER, MAX_DOCUMENTS = 6_000, 4, 1 << 16
CHARACTERS = 2_048
"""The sample: DOCUMENTS, or PER_CLUSTER documents a cluster if that is more, at most MAX_DOCUMENTS, each with its first
CHARACTERS. A larger sample costs time and changes few names."""


def sample_size(clusters: int) -> int:
    """Number of documents from which `clusters` clusters are named."""
    return min(MAX_DOCUMENTS, max(DOCUMENTS, PER_CLUSTER * clusters))


def load_names(run: Reader) -> list[str]:
    """Names of the clusters, by label; all differ."""
    names: list[str] = orjson.loads(run.fit("cluster_names")[FILE])["names"]
    return names


def _name_clusters(run: Run) -> Mapping[str, bytes]:
    from dagster_divorder.core.topics.terms import characteristic_terms, count_words, short_names

    count = run.receipt("centroids").facts["k"]
    labels = run.column("clusters", "labels")
    # A sample of this size has documents of every cluster.
    rows = fit_rows(run, "cluster_names", min(4 * sample_size(count), POINTS_PER_CENTROID * count))
    rows = rows[_evenly(labels[rows], sample_size(count))]
    words = count_words(beginnings(run.records, run.view, rows, CHARACTERS))
    terms = characteristic_terms(words, labels[rows], count)
    return {FILE: orjson.dumps({"names": short_names(terms), "terms": terms})}


def _evenly(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices, rising, of at most `count` documents: the first of every cluster, then the second, and so on."""
    by_label = np.argsort(labels, kind="stable")
    ordered = labels[by_label]
    rank = np.empty_like(by_label)
    rank[by_label] = np.arange(len(labels)) - np.searchsorted(ordered, ordered)
    return np.sort(np.argsort(rank, kind="stable")[:count])


CLUSTER_NAMES = PinnedFit(
    name="cluster_names",
    version=3,
    asset=False,
    description="Names of the clusters.",
    reads=lambda settings: ("raw_docs", "clusters", "centroids", *fit_reads(settings, "cluster_names")),
    decided_by=lambda run: {
        "centroids": run.receipt("centroids").version,
        **fit_inputs(run, "cluster_names"),
    },
    quotes=True,
    doing="naming clusters",
    compute=_name_clusters,
)
