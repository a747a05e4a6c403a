"""map_fit and cluster_map: a sample of the documents as a map, coloured by cluster, and the sizes of all clusters.

The map is a pinned fit to the DOCUMENTS documents with the smallest ids, a random sample, so documents stay in their
places as the corpus grows. Later documents are placed on it. A place depends on the document's vector and the map
alone, so every run gives it the same. Deleted documents leave the map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import plain_array, text_array
from dagster_divorder.core.topics.cluster_map import MapFit, fit, place
from dagster_divorder.core.vectors.pca import Pca
from dagster_divorder.pipeline.fit import MIN_SHARE_LEFT, PinnedFit, another_corpus, documents_left
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, Picture, Shown, WholeCorpus
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.stages.topics.clusters import cluster_sizes
from dagster_divorder.stages.topics.components import chosen_vectors, load_space, space_reads
from dagster_divorder.store.arrays import pack, pack_parquet, unpack
from dagster_divorder.store.ids import hex_ids, places
from dagster_divorder.store.state import Receipt

DOCUMENTS = 20_000
"""Most documents that the map is fitted to: more make it fuller, at more time."""
ARRAYS = "map.safetensors"


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Documents on a map: ids uint64 (n, 2), places xy float32 (n, 2), clusters labels int32 (n,), and placed uint8
    (n,), 1 where the document came after the map was fitted."""

    ids: np.ndarray
    xy: np.ndarray
    labels: np.ndarray
    placed: np.ndarray


def load_map(run: Run) -> ClusterMap:
    """The documents on the map."""
    return ClusterMap(**run.arrays("cluster_map", "places"))


def _fit_map(run: Run) -> Mapping[str, bytes]:
    rows = fit_rows(run, "map_fit", DOCUMENTS)
    ids = run.records.text_ids(run.view.fragments)[rows]
    fitted = asdict(fit(load_space(run).rows(run.view, rows), run.settings.seed))
    axes = fitted.pop("pca")
    return {ARRAYS: pack({**fitted, "mean": axes["mean"], "axes": axes["axes"], "ids": ids})}


def _map_clusters(run: Run) -> Made:
    from dagster_divorder.view.pictures import cluster_map

    names, sizes = load_names(run), cluster_sizes(run).tolist()
    arrays = unpack(run.fit("map_fit")[ARRAYS])
    rows = fit_rows(run, "map_fit", DOCUMENTS)
    ids = run.records.text_ids(run.view.fragments)[rows]
    at = places(ids, arrays["ids"])
    new, xy = at < 0, arrays["xy"][at]
    if new.any():
        axes = Pca(mean=arrays["mean"], axes=arrays["axes"])
        on = MapFit(pca=axes, points=arrays["points"], xy=arrays["xy"])
        xy[new] = place(load_space(run).rows(run.view, rows[new]), on)
    shown = ClusterMap(ids, xy, run.column("clusters", "labels")[rows], new.astype(np.uint8))

    documents, on_map, placed = sum(sizes), len(ids), int(new.sum())
    which = "all of them" if on_map == documents else f"{on_map:,} of them"
    legend = f"Map (UMAP) of {which}: like ones lie near each other; distances between groups mean little"
    if placed:
        legend += f". {placed:,} came after it was fitted"
    title = f"{documents:,} documents in {len(names):,} clusters"
    table = {
        "doc_id": text_array(hex_ids(ids)),
        "x": plain_array(xy[:, 0]),
        "y": plain_array(xy[:, 1]),
        "cluster": plain_array(shown.labels),
        "name": pa.DictionaryArray.from_arrays(plain_array(shown.labels), text_array(names)),
        "placed": plain_array(shown.placed).cast(pa.bool_()),
    }
    files: dict[str, Any] = {
        "picture": File(cluster_map(title, legend, names, sizes, xy, shown.labels), "png"),
        "places": asdict(shown),
        "map": File(pack_parquet(pa.table(table)), "parquet"),
    }
    note = None
    if (left := documents_left(run, run.receipt("map_fit"))) < MIN_SHARE_LEFT:
        note = f"{left:.0%} of the map's documents are left; divorder run --refit cluster_map fits a new map"
        run.progress.note(note)
    figures = {"k": len(names), "of_documents": documents, "on_map": on_map, "placed": placed, "note": note}
    return Made(files, {"of_documents": documents}, figures)


def _show_cluster_map(run: Run, receipt: Receipt) -> Shown:
    picture = run.store.local(receipt.files["picture"])
    return {"cluster_map": Picture(picture, "map of the documents by cluster")}


MAP_FIT: PinnedFit = PinnedFit(
    name="map_fit",
    version=3,
    asset=False,
    description="The map of the documents.",
    reads=lambda settings: ("raw_docs", *space_reads(settings), *fit_reads(settings, "map_fit")),
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
    drift=another_corpus,
)

CLUSTER_MAP = WholeCorpus(
    name="cluster_map",
    version=5,
    description="A map of the documents: similar documents lie close together, and colours are clusters. Places stay "
    "as the corpus grows; new documents are added.",
    reads=lambda settings: (
        *("raw_docs", *space_reads(settings), "clusters", "cluster_names", "map_fit"),
        *fit_reads(settings, "map_fit"),
    ),
    quotes=True,
    publish=lambda run, receipt: run.observed.update(fitted=run.receipt("map_fit").figures["fitted"]),
    doing="drawing the cluster map",
    compute=_map_clusters,
    show=_show_cluster_map,
)
