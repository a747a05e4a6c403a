"""ordering_animation: two films of how documents move into their order, next to the output.

`ordering_animation.mp4`: the dataset as a bar, documents moving from the original order into the curated one, and the
diversity of its sequences. `ordering_animation_umap.mp4`: the cluster map, points lighting up as their documents are
picked, in the original order and in the curated one; only where there is a map. What is drawn are samples, so films
cost the same for millions of documents. They are made again only when what they show has changed. Without the extra
`films`, which brings ffmpeg, there are none, and the report says how to install it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder.core.metrics import distinct_clusters
from dagster_divorder.core.metrics.along import binned
from dagster_divorder.core.migration import sample_cells
from dagster_divorder.engine.progress import Advance
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Link, Made, Shown, WholeCorpus, versions
from dagster_divorder.settings import Settings
from dagster_divorder.stages.cluster_map import ClusterMap, load_map
from dagster_divorder.stages.greedy_order import load_order
from dagster_divorder.stages.traits import load_traits
from dagster_divorder.store.curated import write_beside
from dagster_divorder.store.ids import IdIndex
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.sample import document_index
from dagster_divorder.view.films import COLUMNS, ROWS, film, map_frames, ordering_frames, why_no_films

BAR = "ordering_animation.mp4"
MAP = "ordering_animation_umap.mp4"
BINS = 300
"""Points of the diversity curves."""


def _compute(run: Run) -> Made:
    shown, frames, fps = load_map(run), run.settings.animation.frames, run.settings.animation.fps
    pictures: dict[str, Callable[[], Iterable[np.ndarray]]] = {BAR: lambda: _bar_frames(run)}
    note = f"{MAP} is left out: {run.receipt('cluster_map').facts['note']}"
    if shown:
        pictures[MAP], note = lambda: _map_frames(run, shown), ""
    if why := why_no_films():
        run.progress.note(why)
        pictures, note = {}, why
    with run.progress("drawing films", frames * len(pictures), "frames") as advance:
        films = {name: _film(run.store, draw(), fps, advance) for name, draw in pictures.items()}
    files = {Path(name).stem: File(made, "mp4") for name, made in films.items()}
    return Made(
        files, {"films": list(films)}, {"films": list(films), "frames": frames, "fps": fps, "note": note}
    )


def _publish(run: Run, receipt: Receipt) -> None:
    films = {name: run.store.read_verified(receipt.files[Path(name).stem]) for name in receipt.facts["films"]}
    write_beside(run.store, run.settings.output.path, films)


def _film(store: LocalStore, frames: Iterable[np.ndarray], fps: int, advance: Advance) -> bytes:
    # The encoder writes to a place of its own: it goes back to the head of the file when it is done.
    with store.scratch() as folder:
        path = folder / "film.mp4"
        with film(path, fps) as show:
            for frame in frames:
                show(frame)
                advance(1)
        return path.read_bytes()


def _bar_frames(run: Run) -> Iterable[np.ndarray]:
    traits, order = load_traits(run), load_order(run)
    labels, length = traits.codes["cluster"], run.settings.sequence.length
    curves = [
        binned(distinct_clusters(of, traits.tokens, labels, length), BINS).mean
        for of in (np.arange(len(order)), order)
    ]
    cells = sample_cells(order, traits.tokens, COLUMNS * ROWS)
    return ordering_frames(
        cells, labels, *curves, count=run.settings.animation.frames, sequence_length=length
    )


def _map_frames(run: Run, shown: ClusterMap) -> Iterable[np.ndarray]:

    records, order = run.view, load_order(run)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    ids, _ = document_index(run.store, records)
    index = IdIndex()
    index.add(shown.ids)
    # Of several records of one text the first counts, in either order.
    point = index.find(ids)[records.document_row]
    on_map = np.flatnonzero(point >= 0)
    first, picked = np.full((2, len(shown.ids)), len(order), np.int64)
    np.minimum.at(first, point[on_map], on_map)
    np.minimum.at(picked, point[on_map], position[on_map])
    by_input = np.argsort(first, kind="stable")
    return map_frames(
        shown.xy[by_input],
        shown.labels[by_input],
        np.argsort(picked[by_input], kind="stable"),
        count=run.settings.animation.frames,
    )


def _show(run: Run, receipt: Receipt) -> Shown:
    return {Path(name).stem: Link(run.settings.output.path / name) for name in receipt.facts["films"]}


def _settings(settings: Settings) -> dict[str, Any]:
    return {"animation": settings.animation.model_dump(mode="json"), "length": settings.sequence.length}


ORDERING_ANIMATION = WholeCorpus(
    name="ordering_animation",
    version=2,
    kinds=lambda settings: {"matplotlib"},
    description="Two films: documents moving from the original order into the curated one, and the cluster map "
    "lighting up "
    "as documents are picked.",
    reads=lambda settings: ("raw_docs", "traits", "greedy_order", "cluster_map", "curated_output"),
    settings=_settings,
    # Films that were left out for want of ffmpeg are made once it is there.
    inputs=lambda run: {
        **versions(run, "raw_docs", "traits", "greedy_order", "cluster_map"),
        "films": why_no_films() is None,
    },
    quotes=("*",),
    publish=_publish,
    doing="drawing films",
    compute=_compute,
    show=_show,
)
