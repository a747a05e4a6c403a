"""map_fit and cluster_map: a sample of the documents as a map, coloured by cluster, and the sizes of all clusters.

The map is a pinned fit to the DOCUMENTS documents with the smallest ids, a random sample, so documents stay in their
places until a fifth of the corpus has changed. Deleted documents leave the map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import plain_array, text_array
from dagster_divorder.core.topics.cluster_map import fit
from dagster_divorder.pipeline.fit import PinnedFit, has_changed
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, Picture, WholeCorpus
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_rows
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.stages.topics.clusters import cluster_sizes
from dagster_divorder.stages.topics.components import chosen_vectors, load_space, space_reads
from dagster_divorder.store.arrays import pack, pack_parquet, unpack
from dagster_divorder.store.ids import hex_ids, places

DOCUMENTS = 10_000
"""Most documents of a map: more make it fuller, at more time."""
ARRAYS = "map.safetensors"


def load_map(run: Run) -> dict[str, np.ndarray]:
    """Documents on the map: `ids` uint64 (n, 2), places `xy` float32 (n, 2), clusters `labels` int32 (n,)."""
    return run.arrays("cluster_map", "places")


def _fit_map(run: Run) -> Mapping[str, bytes]:
    rows = fit_rows(run, "map_fit", DOCUMENTS)
    ids = run.index("text")[rows]
    return {ARRAYS: pack({"ids": ids, "xy": fit(load_space(run).rows(run.view, rows), run.settings.seed)})}


def _map_clusters(run: Run) -> Made:
    from dagster_divorder.view.pictures import cluster_map

    names, sizes = load_names(run), cluster_sizes(run).tolist()
    fitted = unpack(run.fit("map_fit")[ARRAYS])
    first = np.flatnonzero(run.are_first)
    at = places(fitted["ids"], run.index("text")[first])
    left = at >= 0
    labels = run.column("clusters", "labels")[first[at[left]]]
    shown = {"ids": fitted["ids"][left], "xy": fitted["xy"][left], "labels": labels}
    documents, on_map = len(first), len(labels)
    which = "all of them" if on_map == documents else f"{on_map:,} of them"
    table = {
        "doc_id": text_array(hex_ids(shown["ids"])),
        "x": plain_array(shown["xy"][:, 0]),
        "y": plain_array(shown["xy"][:, 1]),
        "cluster": plain_array(labels),
        "name": pa.DictionaryArray.from_arrays(plain_array(labels), text_array(names)),
    }
    picture = cluster_map(
        f"{documents:,} documents in {len(names):,} clusters",
        f"Map (UMAP) of {which}: like ones lie near each other; distances between groups mean little",
        names,
        sizes,
        shown["xy"],
        labels,
    )
    files: dict[str, Any] = {
        "picture": File(picture, "png"),
        "places": shown,
        "map": File(pack_parquet(pa.table(table)), "parquet"),
    }
    figures = {"k": len(names), "of_documents": documents, "on_map": on_map}
    return Made(files, {"of_documents": documents}, figures)


MAP_FIT: PinnedFit = PinnedFit(
    name="map_fit",
    version=5,
    asset=False,
    description="The map of the documents.",
    reads=lambda settings: ("raw_docs", *space_reads(settings), "heldout_copies"),
    settings=("seed",),
    decided_by=lambda run: {
        "documents": DOCUMENTS,
        **MAP_FIT.given(run.settings),
        "space": chosen_vectors(run).key,
        **fit_inputs(run, "map_fit"),
    },
    doing="fitting the map",
    compute=_fit_map,
    refit="cluster_map",
    drift=has_changed,
)

CLUSTER_MAP = WholeCorpus(
    name="cluster_map",
    version=6,
    description="A map of the documents: similar documents lie close together, and colours are clusters. Places stay "
    "until a fifth of the documents have changed.",
    reads=lambda settings: ("raw_docs", "clusters", "cluster_names", "map_fit"),
    quotes=True,
    publish=lambda run, receipt: run.observed.update(fitted=run.receipt("map_fit").figures["fitted"]),
    doing="drawing the cluster map",
    compute=_map_clusters,
    show=lambda run, receipt: {
        "cluster_map": Picture(run.store.local(receipt.files["picture"]), "map of the documents by cluster")
    },
)
