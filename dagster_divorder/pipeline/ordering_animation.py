"""ordering_animation: two films of how documents move into their order, next to the output.

`ordering_animation.mp4`: the dataset as a bar, documents moving from the original order into the curated one, and the
diversity of its sequences. `ordering_animation_umap.mp4`: the cluster map, points lighting up as their documents are
picked, in the original order and in the curated one; only where there is a map. What is drawn are samples, so films
cost the same for millions of documents. They are made again only when what they show has changed. Without the extra
`films`, which brings ffmpeg, there are none, and the report says how to install it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dagster_divorder.core.metrics import distinct_clusters
from dagster_divorder.core.metrics.along import binned
from dagster_divorder.core.migration import sample_cells
from dagster_divorder.engine.progress import Advance
from dagster_divorder.pipeline.cluster_map import load_map
from dagster_divorder.pipeline.greedy_order import load_order
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sample import document_index
from dagster_divorder.pipeline.traits import load_traits
from dagster_divorder.store.curated import write_beside
from dagster_divorder.store.ids import IdIndex
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.view.films import COLUMNS, ROWS, film, map_frames, ordering_frames, why_no_films

BAR = "ordering_animation.mp4"
MAP = "ordering_animation_umap.mp4"
BINS = 300
"""Points of the diversity curves."""


def run(run: Run) -> Receipt:
    settings = run.settings
    used = [run.receipt(stage) for stage in ("greedy_order", "cluster_map")]
    places = used[1].files.get("places")
    uses = {receipt.stage: receipt.version for receipt in used}
    key = content_hash(settings.recipe("ordering_animation"), uses)
    folder = f"stages/ordering_animation/{key}"
    wanted = [BAR, *([MAP] if places else [])]
    made = run.store.sealed(folder)
    missing = [name for name in wanted if Path(name).stem not in made]
    note = "" if places else f"{MAP} is left out: {used[1].report['note']}"
    if missing and (why := why_no_films()):
        run.progress.note(why)
        wanted, missing, note = [name for name in wanted if name not in missing], [], why
    frames = settings.animation.frames
    with run.progress("drawing films", frames * len(missing), "frames") as advance:
        for name in missing:
            pictures = _bar_frames(run) if name == BAR else _map_frames(run, str(places))
            made_film = _film(run.store, pictures, settings.animation.fps, advance)
            made[Path(name).stem] = run.store.seal(folder, Path(name).stem, made_film, "mp4")
    films = {name: run.store.unseal(made[Path(name).stem]) for name in wanted}
    write_beside(run.store, settings.output.path, films)
    documents = len(load_view(run))
    return Receipt(
        stage="ordering_animation",
        recipe=settings.recipe("ordering_animation"),
        key=key,
        version=key,
        uses=uses,
        files={name: made[Path(name).stem] for name in wanted},
        report={
            "documents": documents,
            "new_documents": documents if missing else 0,
            "reused_documents": 0 if missing else documents,
            "frames": frames,
            "fps": settings.animation.fps,
            "films": {name: str(settings.output.path / name) for name in wanted},
            "note": note,
        },
    )


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


def _map_frames(run: Run, places: str) -> Iterable[np.ndarray]:
    shown, records, order = load_map(run.store, places), load_view(run), load_order(run)
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
