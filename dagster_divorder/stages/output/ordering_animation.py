"""ordering_animation: two films of how training reads the sequences, shuffled and in order, beside the output.

`ordering_animation.mp4`: the dataset as bars that move from the original order into the sequences that a trainer reads.
`ordering_animation_umap.mp4`: the cluster map, whose points
light up when their documents are first read. Both show the first epoch. Films show samples, so they cost the same for
millions of documents. They are made again with every output, because they show its corpus, date and key. Films need the
extra `films`, which brings ffmpeg; without it the report says how to install it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from dagster_divorder.core.measure.migration import sample_cells
from dagster_divorder.engine.progress import Advance
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Link, Made, WholeCorpus
from dagster_divorder.stages.measure.diversity_metrics import read_in_order
from dagster_divorder.stages.mix.repeats import load_stream, stream_reads
from dagster_divorder.stages.output.curated_output import load_manifest
from dagster_divorder.stages.topics.cluster_map import ClusterMap, load_map
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.stages.topics.clusters import cluster_sizes
from dagster_divorder.store.base import Store
from dagster_divorder.store.ids import places
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.films import (
    COLUMNS,
    ROWS,
    FilmedCorpus,
    FilmedOrder,
    film,
    map_frames,
    ordering_frames,
    why_no_films,
)
from dagster_divorder.view.words import output_label
from dagster_divorder.write.curated import write_beside

BAR = "ordering_animation.mp4"
MAP = "ordering_animation_umap.mp4"
FRAMES = 150
"""Frames of each film."""
FPS = 30
"""Pictures a second."""


def _animate_ordering(run: Run) -> Made:
    note = ""
    pictures: dict[str, Callable[[], Iterable[np.ndarray]]] = {
        BAR: lambda: _bar_frames(run),
        MAP: lambda: _map_frames(run, load_map(run)),
    }
    if why := why_no_films():
        run.progress.note(why)
        pictures, note = {}, why
    with run.progress("drawing films", FRAMES * len(pictures), "frames") as advance:
        films = {name: _film(run.store, draw(), advance) for name, draw in pictures.items()}
    files = {Path(name).stem: File(data, "mp4") for name, data in films.items()}
    names = {"films": list(films)}
    return Made(files, names, {**names, "frames": FRAMES, "fps": FPS, "note": note})


def _publish_films(run: Run, receipt: Receipt) -> None:
    films = {name: run.store.read_verified(receipt.files[Path(name).stem]) for name in receipt.facts["films"]}
    write_beside(run.store, run.settings.output.path, films)


def _film(store: Store, frames: Iterable[np.ndarray], advance: Advance) -> bytes:
    # The encoder needs a file on disk, because it rewrites the head of the file at the end.
    with store.scratch() as folder:
        path = folder / "film.mp4"
        with film(path, FPS) as show:
            for frame in frames:
                show(frame)
                advance(1)
        return path.read_bytes()


def _corpus(run: Run) -> FilmedCorpus:
    return FilmedCorpus(
        names=load_names(run), sizes=cluster_sizes(run), output_label=output_label(load_manifest(run))
    )


def _bar_frames(run: Run) -> Iterable[np.ndarray]:
    traits = load_stream(run).traits
    orders, filmed = read_in_order(run, traits), []
    for name in ("sequences_random", "sequences"):
        runs, _ = orders[name]
        # Cells start at their runs' places in the original order.
        before = np.lexsort((runs.start, runs.document))
        cells = sample_cells(np.argsort(before), runs.length[before], COLUMNS * ROWS)
        clusters = traits.codes["cluster"][runs.document[before][cells.document]]
        filmed.append(FilmedOrder(name, cells, clusters))
    return ordering_frames(filmed, _corpus(run), count=FRAMES)


def _map_frames(run: Run, shown: ClusterMap) -> Iterable[np.ndarray]:
    # A point lights up when the first record of its text is read.
    stream = load_stream(run)
    point = places(run.records.text_ids(run.view.fragments), shown.ids)[stream.record_of]
    orders = {}
    for name, (runs, _) in read_in_order(run, stream.traits).items():
        if name != "curated":
            read = point[runs.document]
            first = np.full(len(shown.ids), len(read), np.int64)
            np.minimum.at(first, read[read >= 0], np.flatnonzero(read >= 0))
            orders[name] = np.argsort(first, kind="stable")
    return map_frames(shown.xy, shown.labels, orders, _corpus(run), count=FRAMES)


ORDERING_ANIMATION: WholeCorpus = WholeCorpus(
    name="ordering_animation",
    version=4,
    description="Films of how training reads the corpus, shuffled and in order: the dataset as bars, and the map of "
    "clusters lighting up as documents are first read.",
    reads=lambda settings: (
        *("raw_docs", "clusters", "cluster_names", "cluster_map", "traits", *stream_reads(settings)),
        *("greedy_order", "packed_sequences", "sequence_order", OUTPUT),
    ),
    # The output's version leaves its manifest out. Films left out without ffmpeg are made once it is installed.
    decided_by=lambda run: {
        **ORDERING_ANIMATION.usual(run),
        "output": run.receipt(OUTPUT).key,
        "films": why_no_films() is None,
    },
    quotes=True,
    publish=_publish_films,
    doing="drawing films",
    compute=_animate_ordering,
    show=lambda run, receipt: {
        Path(name).stem: Link(run.settings.output.path / name) for name in receipt.facts["films"]
    },
)
