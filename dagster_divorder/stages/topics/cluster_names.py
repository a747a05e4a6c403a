"""cluster_names: a name and an example of each cluster, pinned with its centroids: they change only if the clusters do.

They are made when the clusters first have documents, and again once `divorder prune` has removed documents whose words
may be in them. The sample has the documents with the smallest ids, equally many of each cluster as far as possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.topics.cluster import most_points
from dagster_divorder.corpus.stored import beginnings, first_lines
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_rows
from dagster_divorder.store.stages import Reader

FILE = "names.json"
DOCUMENTS, PER_CLUSTER, MAX_DOCUMENTS = 4_000, 4, 1 << 16
CHARACTERS = 1_024
"""The sample: DOCUMENTS, or PER_CLUSTER documents a cluster if that is more, at most MAX_DOCUMENTS, each with its first
CHARACTERS. A larger sample costs time and changes few names."""


def sample_size(clusters: int) -> int:
    """Number of documents from which `clusters` clusters are named."""
    return min(MAX_DOCUMENTS, max(DOCUMENTS, PER_CLUSTER * clusters))


def load_named(run: Reader) -> dict[str, Any]:
    """By label: `names`, which all differ, and `examples`, the beginning of the sample's document nearest to the
    centroid."""
    named: dict[str, Any] = orjson.loads(run.fit("cluster_names")[FILE])
    return named


def load_names(run: Reader) -> list[str]:
    """Names of the clusters, by label; all differ."""
    return list(load_named(run)["names"])


def _name_clusters(run: Run) -> Mapping[str, bytes]:
    from dagster_divorder.core.topics.terms import cluster_names, find_words

    count = run.receipt("centroids").facts["k"]
    labels, distances = run.files("clusters").columns(run.view.fragments, "labels", "distances")
    # A sample of this size has documents of every cluster: the first of each, then the second, and so on.
    rows = fit_rows(run, "cluster_names", min(4 * sample_size(count), most_points(count)))
    by_label = np.argsort(labels[rows], kind="stable")
    ordered = labels[rows[by_label]]
    rank = np.arange(len(rows)) - np.searchsorted(ordered, ordered)
    rows = rows[np.sort(by_label[np.argsort(rank, kind="stable")[: sample_size(count)]])]
    texts = beginnings(run.records, run.view, rows, CHARACTERS)
    by_distance = np.argsort(distances[rows], kind="stable")
    near, first = np.unique(labels[rows[by_distance]], return_index=True)
    lines = first_lines(run.records, run.view, rows[by_distance[first]])
    examples = [dict(zip(near.tolist(), lines, strict=True)).get(label, "") for label in range(count)]
    names = cluster_names(*find_words(texts), labels[rows], count)
    return {FILE: orjson.dumps({"names": names, "examples": examples})}


CLUSTER_NAMES = PinnedFit(
    name="cluster_names",
    version=7,
    asset=False,
    description="A name and an example of each cluster.",
    reads=("raw_docs", "clusters", "centroids", "heldout_copies"),
    decided_by=lambda run: {
        "centroids": run.receipt("centroids").version,
        **fit_inputs(run, "cluster_names"),
    },
    quotes=True,
    doing="naming clusters",
    compute=_name_clusters,
)
