"""map_fit: the map of the documents, fitted by UMAP to the DOCUMENTS documents with the smallest ids,
which is a random sample."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dagster_divorder.core.topics.cluster_map import MapFit, fit
from dagster_divorder.core.vectors.pca import Pca
from dagster_divorder.pipeline.drift import another_corpus
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.stages.topics.components import chosen_space_key, load_space, space_reads
from dagster_divorder.store.arrays import pack, unpack

DOCUMENTS = 20_000
"""Most documents that the map is fitted to: more make it fuller, at more time."""

ARRAYS = "map.safetensors"


def sampled_rows(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(ids uint64 (n, 2), document rows int64 (n,)) of the documents on the map."""
    rows = fit_rows(run, "map_fit", DOCUMENTS)
    return run.records.text_ids(run.view.fragments)[rows], rows


def load_map_fit(run: Run) -> tuple[MapFit, np.ndarray]:
    """The fitted map and the ids uint64 (n, 2) of its documents."""
    arrays = unpack(run.fit("map_fit")[ARRAYS])
    # `explained` is only shown; the fit does not keep it.
    pca = Pca(mean=arrays["mean"], axes=arrays["axes"], explained=0.0)
    return MapFit(pca=pca, points=arrays["points"], xy=arrays["xy"]), arrays["ids"]


def _fit_map(run: Run) -> Mapping[str, bytes]:
    ids, rows = sampled_rows(run)
    fitted = fit(load_space(run).rows(run.view, rows), run.settings.seed)
    pca = {"mean": fitted.pca.mean, "axes": fitted.pca.axes}
    return {ARRAYS: pack({**pca, "points": fitted.points, "xy": fitted.xy, "ids": ids})}


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
        "space": chosen_space_key(run),
        **fit_inputs(run, "map_fit"),
    },
    doing="fitting the map",
    compute=_fit_map,
    refit="cluster_map",
    drift=another_corpus,
)
