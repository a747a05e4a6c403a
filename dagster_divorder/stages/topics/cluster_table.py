"""cluster_table: a row for each cluster, with the documents nearest to its centroid as examples.

The nearest documents may change with every run. A text is read once and stays in the table while its document is among
the nearest, so after an append little more than new texts is read.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import orjson

from dagster_divorder.corpus.sample import first_lines
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, WholeCorpus
from dagster_divorder.stages.mix.heldout import fit_reads, held_out_rows
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.store.ids import hex_ids
from dagster_divorder.store.state import load_receipt

SHOWN = 1_000
"""Clusters that have a row: the first, which are the largest of the fit."""
EXAMPLES = 3
NEAREST = 6
"""Documents kept for each cluster, enough to find EXAMPLES that begin differently."""


def load_cluster_table(run: Run) -> list[dict[str, Any]]:
    """A row for each of the first SHOWN clusters: `cluster`, `name`, `documents`, `share` of all documents,
    `mean_distance` (cosine) to the centroid, `nearest` (ids of the nearest documents, hex), `texts` (their beginnings),
    `examples` (at most EXAMPLES different ones of these)."""
    rows = orjson.loads(run.read("cluster_table", "table"))
    return [{**row, "examples": list(dict.fromkeys(row["texts"]))[:EXAMPLES]} for row in rows]


def _tabulate_clusters(run: Run) -> Made:
    view, names = run.view, load_names(run)
    labels, distances = run.files("clusters").columns(view.fragments, "labels", "distances")
    ids = run.records.text_ids(run.view.fragments)
    left_out = held_out_rows(run, "cluster_table")
    # Of equal texts only the first is an example.
    shown = np.where(run.are_first, labels, np.int32(-1))
    shown = shown if left_out is None else np.where(left_out, np.int32(-1), shown)
    order = np.lexsort((ids[:, 0], distances, shown))
    begins = np.searchsorted(shown[order], np.arange(min(len(names), SHOWN) + 1))
    members = [order[begin:end][:NEAREST] for begin, end in pairwise(begins)]
    texts = _texts(run, ids, np.concatenate(members))
    sizes = np.bincount(labels, minlength=len(names))
    means = np.bincount(labels, distances.astype(np.float64), len(names)) / np.maximum(sizes, 1)
    rows = [
        {
            "cluster": label,
            "name": names[label],
            "documents": int(sizes[label]),
            "share": float(sizes[label] / max(1, sizes.sum())),
            "mean_distance": float(means[label]),
            "nearest": hex_ids(ids[nearest]),
            "texts": [texts[row] for row in nearest.tolist()],
        }
        for label, nearest in enumerate(members)
    ]
    return Made({"table": File(orjson.dumps(rows), "json")})


def _texts(run: Run, ids: np.ndarray, rows: np.ndarray) -> dict[int, str]:
    """Row -> beginning of the document's text."""
    before = load_receipt(run.store, "cluster_table")
    known: dict[str, str] = {}
    if before and run.store.exists(before.files["table"]):
        for row in orjson.loads(run.store.read_verified(before.files["table"])):
            known |= zip(row["nearest"], row["texts"], strict=True)
    texts = dict(zip(rows.tolist(), map(known.get, hex_ids(ids[rows])), strict=True))
    missing = np.array([row for row, text in texts.items() if text is None], np.int64)
    read = dict(zip(missing.tolist(), first_lines(run.records, run.view, missing), strict=True))
    return {row: read[row] if text is None else text for row, text in texts.items()}


CLUSTER_TABLE = WholeCorpus(
    name="cluster_table",
    version=1,
    asset=False,
    description="The clusters with their sizes and examples.",
    reads=lambda settings: (
        "raw_docs",
        "clusters",
        "cluster_names",
        *fit_reads(settings, "cluster_table"),
    ),
    quotes=True,
    compute=_tabulate_clusters,
)
