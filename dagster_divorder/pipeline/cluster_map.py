"""cluster_map: a sample of the documents as a map, coloured by cluster, and the sizes of all clusters.

On the map are the `cluster_map.sample` documents with the smallest ids, a random sample that an append changes by its
own share. The map is a pinned fit, so that documents stay where they are as the corpus grows: those that came after it
are placed on it, each on its own, so that it does not matter in how many runs they came; deleted ones leave it. It is
fitted again when the vectors have another key, or on request (`cluster_map.refit`).

Places are kept from run to run; only a fit needs umap-learn. Where that cannot be imported there are the sizes alone,
and the report and the picture say what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from dagster_divorder.core.cluster_map import MapFit, fit, place, why_no_map
from dagster_divorder.core.pca import Pca
from dagster_divorder.pipeline.cluster_names import load_names
from dagster_divorder.pipeline.clusters import cluster_files
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.refresh import MIN_SHARE_LEFT, corpus_sketch, documents_left, sketch_file
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sample import document_index, rows_by_id
from dagster_divorder.pipeline.space import Space, chosen_space
from dagster_divorder.store.arrays import binary_array, pack, unpack
from dagster_divorder.store.fits import Fit, pin, pinned, read_fit
from dagster_divorder.store.ids import IdIndex, to_bytes
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.view import View

ARRAYS = "map.safetensors"


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Documents on a map: ids uint64 (n, 2), places xy float32 (n, 2), clusters labels int32 (n,), and placed uint8
    (n,), 1 where the document came after the map was fitted."""

    ids: np.ndarray
    xy: np.ndarray
    labels: np.ndarray
    placed: np.ndarray


def run(run: Run) -> Receipt:
    settings, view, space, clusters = run.settings, load_view(run), chosen_space(run), run.receipt("clusters")
    ids, _ = document_index(run.store, view)
    rows = rows_by_id(ids, view)
    documents, rows = len(rows), rows[: settings.cluster_map.sample]
    current, reason, missing = _fit(run, view, space, ids, rows)
    key = content_hash(settings.recipe("cluster_map"), current.hash if current else missing, clusters.version)
    folder = f"stages/cluster_map/{key}"
    found = dict(run.store.sealed(folder))
    names = load_names(run)
    shown, placed = None, 0
    if current:
        if "places" not in found:
            shown, placed = _chart(run, view, space, current, ids, rows)
            found["places"] = run.store.seal(folder, "places", pack(asdict(shown)), "safetensors")
        shown = shown or load_map(run.store, found["places"])
        if "map" not in found:
            found["map"] = run.store.seal(folder, "map", _parquet(shown, names), "parquet")
    drawn = "picture" not in found
    if drawn:
        picture = _picture(shown, missing, names, clusters.report["cluster_sizes"])
        found["picture"] = run.store.seal(folder, "picture", picture, "png")
    count = len(rows) if shown else documents
    new = (count if reason else placed) if shown else (count if drawn else 0)
    note = missing
    if current and (left := documents_left(run, view, current)) < MIN_SHARE_LEFT:
        note = (
            f"{left:.0%} of the documents that the map was fitted to are left; "
            'set cluster_map.refit = "now" for one run to fit it to the present ones'
        )
        run.progress.note(note)
    return Receipt(
        stage="cluster_map",
        recipe=settings.recipe("cluster_map"),
        key=key,
        # All files follow from the key.
        version=key,
        uses={receipt.stage: receipt.version for receipt in (run.receipt("raw_docs"), clusters)},
        files={**found, **({"fit": current.folder} if current else {}), **space.fits()},
        report={
            "documents": count,
            "new_documents": new,
            "reused_documents": count - new,
            "k": len(names),
            "of_documents": documents,
            "placed": int(shown.placed.sum()) if shown else None,
            "fitted": reason or (f"no: pinned ({current.reason})" if current else None),
            "note": note,
        },
    )


def _fit(
    run: Run, view: View, space: Space, ids: np.ndarray, rows: np.ndarray
) -> tuple[Fit | None, str | None, str | None]:
    """The current fit, why it was made now, and why it could not be."""
    recipe = f"{run.settings.recipe('cluster_map')}-{space.key}"
    refit = run.settings.cluster_map.refit == "now"
    current = pinned(run.store, "cluster_map", recipe, refit=refit)
    reason = "first run with these settings and vectors" if current is None else None
    if refit:
        reason = "asked for by cluster_map.refit"
    if reason is None:
        return current, None, None
    missing = why_no_map()
    if missing:
        run.progress.note(missing)
        return current, None, missing
    run.progress.note(f"fitting the map of {len(rows):,} documents ({reason})")
    made = fit(space.rows(view, rows), run.settings.seed)
    arrays = {
        "mean": made.pca.mean,
        "axes": made.pca.axes,
        "points": made.points,
        "xy": made.xy,
        "ids": ids[rows],
    }
    files = {ARRAYS: pack(arrays), **sketch_file(corpus_sketch(run, view))}
    return pin(run.store, "cluster_map", recipe, files, reason), reason, None


def _chart(
    run: Run, view: View, space: Space, current: Fit, ids: np.ndarray, rows: np.ndarray
) -> tuple[ClusterMap, int]:
    """The documents of some rows on the current map, and how many had to be placed now."""
    arrays = unpack(read_fit(run.store, current)[ARRAYS])
    known, places = IdIndex(), [arrays["xy"]]
    known.add(arrays["ids"])
    last = load_receipt(run.store, "cluster_map")
    if last and last.files.get("fit") == current.folder and run.store.exists(last.files["places"]):
        before = load_map(run.store, last.files["places"])
        placed = known.find(before.ids) < 0
        known.add(before.ids[placed])
        places.append(before.xy[placed])
    at = known.find(ids[rows])
    new = at < 0
    xy = np.empty((len(rows), 2), np.float32)
    xy[~new] = np.concatenate(places)[at[~new]]
    if new.any():
        # `explained` is for people, and not kept.
        projection = Pca(mean=arrays["mean"], axes=arrays["axes"], explained=0.0)
        fitted = MapFit(pca=projection, points=arrays["points"], xy=arrays["xy"])
        xy[new] = place(space.rows(view, rows[new]), fitted)
    labels = cluster_files(run).column(view.documents, "labels")[rows]
    placed = new | (at >= len(arrays["ids"]))
    return ClusterMap(ids[rows], xy, labels, placed.astype(np.uint8)), int(new.sum())


def _picture(
    shown: ClusterMap | None, missing: str | None, names: Sequence[str], sizes: Sequence[int]
) -> bytes:
    from dagster_divorder.view.cluster_map import cluster_map

    documents = sum(sizes)
    title = f"{documents:,} documents in {len(names):,} clusters"
    if shown is None:
        return cluster_map(title, missing or "", names, sizes)
    on_map, placed = len(shown.ids), int(shown.placed.sum())
    which = "all of them" if on_map == documents else f"{on_map:,} of them"
    note = f"Map (UMAP) of {which}: like ones lie near each other; distances between groups mean little"
    if placed:
        note += f". {placed:,} came after it was fitted"
    return cluster_map(title, note, names, sizes, shown.xy, shown.labels)


def _parquet(shown: ClusterMap, names: Sequence[str]) -> bytes:
    """A row a document on the map: doc_id (hex), x, y, cluster, name, and whether it was placed after the fit."""
    import pyarrow.parquet as pq

    def numbers(values: np.ndarray, kind: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])

    def strings(values: Sequence[bytes]) -> pa.Array:
        return binary_array(values).cast(pa.large_string())

    hexadecimal = to_bytes(shown.ids).hex().encode()
    clusters = numbers(shown.labels, pa.int32())
    columns = {
        "doc_id": strings([hexadecimal[at : at + 32] for at in range(0, len(hexadecimal), 32)]),
        "x": numbers(shown.xy[:, 0], pa.float32()),
        "y": numbers(shown.xy[:, 1], pa.float32()),
        "cluster": clusters,
        "name": pa.DictionaryArray.from_arrays(clusters, strings([name.encode() for name in names])),
        "placed": numbers(shown.placed, pa.uint8()).cast(pa.bool_()),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def load_map(store: LocalStore, file: str) -> ClusterMap:
    """The documents on the map; `file` is `places` of the receipt, which has none where there is no map."""
    return ClusterMap(**unpack(store.unseal(file)))
