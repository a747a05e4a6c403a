"""map_fit: the map of the documents, fitted to a sample by UMAP.

The sample has the `advanced.map_documents` documents with the smallest ids, which is random. Only the fit needs
umap-learn. If it cannot be imported, there is no map, and the note says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.topics.cluster_map import MapFit, fit, why_no_map
from dagster_divorder.core.vectors.pca import Pca
from dagster_divorder.pipeline.drift import another_corpus
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PinnedFit
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.stages.topics.components import chosen_space_key, load_space, space_reads
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.sample import document_ids
from dagster_divorder.store.state import load_receipt

ARRAYS = "map.safetensors"
NOTE = "note.json"


def sampled_rows(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(ids uint64 (n, 2), document rows int64 (n,)) of the documents on the map."""
    rows = fit_rows(run, "map_fit", run.settings.advanced.map_documents)
    return document_ids(run.store, run.view)[rows], rows


def load_map_fit(run: Run) -> tuple[MapFit, np.ndarray] | None:
    """The fitted map and the ids uint64 (n, 2) of its documents; None if there is no map."""
    files = run.fit("map_fit")
    if ARRAYS not in files:
        return None
    arrays = unpack(files[ARRAYS])
    # `explained` is only shown; the fit does not keep it.
    pca = Pca(mean=arrays["mean"], axes=arrays["axes"], explained=0.0)
    return MapFit(pca=pca, points=arrays["points"], xy=arrays["xy"]), arrays["ids"]


def _inputs(run: Run) -> dict[str, Any]:
    space, last = chosen_space_key(run), load_receipt(run.store, "map_fit")
    fitted = last is not None and last.facts["space"] == space and last.facts["note"] is None
    return {"space": space, "note": None if fitted else why_no_map(), **fit_inputs(run, "map_fit")}


def _fit_map(run: Run) -> Mapping[str, bytes]:
    if note := _inputs(run)["note"]:
        run.progress.note(note)
        return {NOTE: orjson.dumps(note)}
    ids, rows = sampled_rows(run)
    fitted = fit(load_space(run).rows(run.view, rows), run.settings.seed)
    pca = {"mean": fitted.pca.mean, "axes": fitted.pca.axes}
    return {ARRAYS: pack({**pca, "points": fitted.points, "xy": fitted.xy, "ids": ids})}


MAP_FIT = PinnedFit(
    name="map_fit",
    version=2,
    asset=False,
    description="The map of the documents.",
    reads=lambda settings: ("raw_docs", *space_reads(settings), *fit_reads(settings, "map_fit")),
    settings=lambda settings: {"sample": settings.advanced.map_documents, "seed": settings.seed},
    inputs=_inputs,
    doing="fitting the map",
    compute=_fit_map,
    refit="cluster_map",
    can_be_made=lambda: why_no_map() is None,
    drift=another_corpus,
    facts=lambda run, fitted: {
        "space": chosen_space_key(run),
        "note": orjson.loads(fitted.files[NOTE]) if NOTE in fitted.files else None,
    },
)
