"""What people see of clusters: a row each, with the documents nearest to the centroid as examples.

Which documents are nearest may change with every run; a text is read once and then kept in the table as long as its
document stays among the nearest, so an append reads little more than what is new.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.sample import beginnings, document_index
from dagster_divorder.store.ids import to_bytes
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.view import View

FOLDER = "stages/cluster_tables"

SHOWN = 1_000
"""Clusters that have a row, the first ones, which were the largest when they were fitted."""
EXAMPLES = 3
NEAREST = 6
"""Documents that are kept of a cluster, so that EXAMPLES of different texts are among them."""
TEXT = 200
"""Characters of an example."""


def cluster_table(
    run: Run, view: View, version: str, names: list[str], labels: np.ndarray, distances: np.ndarray
) -> str:
    """The file of the table of a result of clusters, written where it is not there.

    labels int32 and distances float32 by document row, of the used documents; label -1 of others.
    """
    present = run.store.sealed(FOLDER)
    if version in present:
        return present[version]
    from dagster_divorder.core.kernels.members import nearest_members

    shown = min(len(names), SHOWN)
    ids, _ = document_index(run.store, view)
    members = np.empty((shown, NEAREST), np.int64)
    nearest_members(labels, distances, ids[:, 0], members)
    texts = _texts(run, view, ids, members[members >= 0])
    hexadecimal = {row: to_bytes(ids[row : row + 1]).hex() for row in texts}
    used = labels >= 0
    sizes = np.bincount(labels[used], minlength=len(names))
    means = np.bincount(labels[used], distances[used].astype(np.float64), len(names)) / np.maximum(sizes, 1)
    rows = [
        {
            "cluster": label,
            "name": names[label],
            "documents": int(sizes[label]),
            "share": float(sizes[label] / max(1, sizes.sum())),
            "mean_distance": float(means[label]),
            "nearest": [hexadecimal[row] for row in own[own >= 0].tolist()],
            "texts": [texts[row] for row in own[own >= 0].tolist()],
        }
        for label, own in enumerate(members)
    ]
    return run.store.seal(FOLDER, version, orjson.dumps(rows), "json")


def load_cluster_table(store: LocalStore, clusters: Receipt) -> list[dict[str, Any]]:
    """A row a cluster, of the first SHOWN: `cluster`, `name`, `documents`, `share` of them, `mean_distance` (cosine) to
    the centroid, `nearest` (ids of its nearest documents, hex), `texts` (how these begin), `examples` (of these at most
    EXAMPLES that differ)."""
    rows = orjson.loads(store.unseal(clusters.files["table"]))
    return [{**row, "examples": list(dict.fromkeys(row["texts"]))[:EXAMPLES]} for row in rows]


def read_examples(store: LocalStore, view: View, rows: np.ndarray) -> list[str]:
    """How the texts of some document rows begin, in one line each."""
    read = beginnings(store, view, rows, 4 * TEXT)
    return [" ".join(text.split())[:TEXT] for text in read.to_pylist()]


def _texts(run: Run, view: View, ids: np.ndarray, rows: np.ndarray) -> dict[int, str]:
    """How the documents of some rows begin, by row."""
    before = load_receipt(run.store, "clusters")
    known: dict[str, str] = {}
    if before and "table" in before.files and run.store.exists(before.files["table"]):
        for row in load_cluster_table(run.store, before):
            known |= zip(row["nearest"], row["texts"], strict=True)
    words = to_bytes(ids[rows]).hex()
    texts = {row: known.get(words[32 * at : 32 * at + 32]) for at, row in enumerate(rows.tolist())}
    missing = np.array([row for row, text in texts.items() if text is None], np.int64)
    read = dict(zip(missing.tolist(), read_examples(run.store, view, missing), strict=True))
    return {row: read[row] if text is None else text for row, text in texts.items()}
