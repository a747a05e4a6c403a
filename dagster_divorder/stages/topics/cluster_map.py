"""cluster_map: a sample of the documents as a map, coloured by cluster, and the sizes of all clusters.

The map is a pinned fit (`map_fit`), so that documents stay in their places as the corpus grows. Later documents are
placed on it once, each by itself, so their places do not depend on the run that adds them. Deleted documents leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_divorder.core.arrow import plain_array, text_array
from dagster_divorder.core.topics.cluster_map import place
from dagster_divorder.pipeline.drift import MIN_SHARE_LEFT, documents_left
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, Picture, Shown, WholeCorpus, counts
from dagster_divorder.stages.mix.heldout import fit_reads
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.stages.topics.clusters import cluster_sizes
from dagster_divorder.stages.topics.components import load_space, space_reads
from dagster_divorder.stages.topics.map_fit import load_map_fit, sampled_rows
from dagster_divorder.store.arrays import pack_parquet, unpack
from dagster_divorder.store.ids import hex_ids, places
from dagster_divorder.store.state import Receipt, load_receipt


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


def _map_clusters(run: Run) -> Made:
    from dagster_divorder.view.pictures import cluster_map

    names, sizes = load_names(run), cluster_sizes(run).tolist()
    documents, fitted = sum(sizes), run.receipt("map_fit")
    shown, new = _places(run)
    on_map, placed = len(shown.ids), int(shown.placed.sum())
    which = "all of them" if on_map == documents else f"{on_map:,} of them"
    legend = f"Map (UMAP) of {which}: like ones lie near each other; distances between groups mean little"
    if placed:
        legend += f". {placed:,} came after it was fitted"
    title = f"{documents:,} documents in {len(names):,} clusters"
    files: dict[str, Any] = {
        "picture": File(cluster_map(title, legend, names, sizes, shown.xy, shown.labels), "png"),
        "places": asdict(shown),
        "map": File(_parquet(shown, names), "parquet"),
    }
    note = None
    if (share_left := documents_left(run, fitted)) < MIN_SHARE_LEFT:
        note = (
            f"{share_left:.0%} of the map's documents are left; divorder run --refit cluster_map fits a new map to the "
            "present documents"
        )
        run.progress.note(note)
    figures = {
        **counts(documents, new),
        "k": len(names),
        "of_documents": documents,
        "on_map": on_map,
        "placed": placed,
        "note": note,
    }
    return Made(files, {"of_documents": documents}, figures)


def _places(run: Run) -> tuple[ClusterMap, int]:
    """(the documents on the map, the number of new ones)."""
    fitted, known = load_map_fit(run)
    before = _placed_before(run)
    ids, rows = sampled_rows(run)
    at = places(ids, np.concatenate([known, before.ids]) if before else known)
    new = at < 0
    xy = np.concatenate([fitted.xy, before.xy] if before else [fitted.xy])[at]
    if new.any():
        xy[new] = place(load_space(run).rows(run.view, rows[new]), fitted)
    labels = run.column("clusters", "labels")[rows]
    placed = (new | (at >= len(known))).astype(np.uint8)
    return ClusterMap(ids, xy, labels, placed), int(new.sum()) if before else len(rows)


def _placed_before(run: Run) -> ClusterMap | None:
    """The documents that the last run placed on this map after its fit; None if it drew another map."""
    last = load_receipt(run.store, "cluster_map")
    if last is None or last.upstream["map_fit"] != run.receipt("map_fit").version:
        return None
    if not run.store.exists(last.files["places"]):
        return None
    shown = ClusterMap(**unpack(run.store.read_verified(last.files["places"])))
    later = shown.placed == 1
    return ClusterMap(shown.ids[later], shown.xy[later], shown.labels[later], shown.placed[later])


def _parquet(shown: ClusterMap, names: Sequence[str]) -> bytes:
    """Parquet with a row for each document on the map: doc_id (hex), x, y, cluster, name, and whether it was placed
    after the fit."""
    clusters = plain_array(shown.labels)
    columns = {
        "doc_id": text_array(hex_ids(shown.ids)),
        "x": plain_array(shown.xy[:, 0]),
        "y": plain_array(shown.xy[:, 1]),
        "cluster": clusters,
        "name": pa.DictionaryArray.from_arrays(clusters, text_array(names)),
        "placed": plain_array(shown.placed).cast(pa.bool_()),
    }
    return pack_parquet(pa.table(columns))


def _show_cluster_map(run: Run, receipt: Receipt) -> Shown:
    return {
        "cluster_map": Picture(run.store.local(receipt.files["picture"]), "map of the documents by cluster")
    }


def _publish(run: Run, receipt: Receipt) -> None:
    run.observed["fitted"] = run.receipt("map_fit").figures["fitted"]


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
    publish=_publish,
    doing="drawing the cluster map",
    compute=_map_clusters,
    show=_show_cluster_map,
)
