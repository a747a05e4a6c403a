"""ordering_animation: two films of how training reads the sequences, shuffled and in order, beside the output.

`ordering_animation.mp4`: the dataset as bars that move from the original order into the sequences that a trainer reads.
`ordering_animation_umap.mp4`: the cluster map, whose points light up when their documents are first read. Both show
samples of the first epoch. They are made again with every output, because they show its corpus, date and key. Films
need the extra `films`, which brings ffmpeg; without it the stage notes how to install it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dagster_divorder.extras import why_missing
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Link, Made, WholeCorpus
from dagster_divorder.stages.measure.diversity_metrics import read_in_order
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.output.curated_output import load_manifest
from dagster_divorder.stages.topics.cluster_map import load_map
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.stages.topics.clusters import cluster_sizes
from dagster_divorder.store.disk import scratch
from dagster_divorder.store.ids import places
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.films import Film, FilmedCorpus, map_film, ordering_film, sample_cells, write_film
from dagster_divorder.view.words import output_label
from dagster_divorder.write.curated import write_beside

BAR = "ordering_animation.mp4"
MAP = "ordering_animation_umap.mp4"
FRAMES = 100
"""Frames of each film."""
FPS = 20
"""Pictures a second."""


def _animate_ordering(run: Run) -> Made:
    note, films = why_missing("imageio_ffmpeg") or "", dict[str, Film]()
    corpus = FilmedCorpus(load_names(run), cluster_sizes(run), output_label(load_manifest(run)))
    if note:
        run.progress.note(note)
    else:
        stream, shown = load_stream(run), load_map(run)
        point = places(run.index("text"), shown["ids"])[stream.record_of]
        cells, lit = {}, {}
        for name, runs in read_in_order(run).items():
            # A point lights up when the first record of its text is read.
            read = point[runs.document]
            first = np.full(len(shown["ids"]), len(read), np.int64)
            np.minimum.at(first, read[read >= 0], np.flatnonzero(read >= 0))
            lit[name] = np.argsort(first, kind="stable")
            if name != "original":
                cells[name] = sample_cells(runs, stream.traits.codes["cluster"])
        films[BAR] = ordering_film(cells, corpus, count=FRAMES)
        films[MAP] = map_film(shown["xy"], shown["labels"], lit, corpus, count=FRAMES)
    files = {}
    with run.progress("drawing films", FRAMES * len(films), "frames") as advance:
        for name, film in films.items():
            # The encoder needs a file on disk, because it rewrites the head of the file at the end.
            with scratch() as folder:
                write_film(folder / name, film, corpus, FPS, advance)
                files[Path(name).stem] = File((folder / name).read_bytes(), "mp4")
    names = {"films": list(films)}
    return Made(files, names, {**names, "frames": FRAMES, "fps": FPS, "note": note})


def _publish_films(run: Run, receipt: Receipt) -> None:
    films = {name: run.store.read_verified(receipt.files[Path(name).stem]) for name in receipt.facts["films"]}
    write_beside(run.store, run.settings.output.path, films)


ORDERING_ANIMATION: WholeCorpus = WholeCorpus(
    name="ordering_animation",
    version=6,
    description="Films of how training reads the corpus, shuffled and in order: the dataset as bars, and the map of "
    "clusters lighting up as documents are first read.",
    reads=(
        *("raw_docs", "clusters", "cluster_names", "cluster_map", "traits", "repeats"),
        *("greedy_order", "packed_sequences", "sequence_order", OUTPUT),
    ),
    # The output's version leaves its manifest out. Films left out without ffmpeg are made once it is installed.
    decided_by=lambda run: {
        **ORDERING_ANIMATION.usual(run),
        "output": run.receipt(OUTPUT).key,
        "films": why_missing("imageio_ffmpeg") is None,
    },
    quotes=True,
    publish=_publish_films,
    doing="drawing films",
    compute=_animate_ordering,
    show=lambda run, receipt: {
        Path(name).stem: Link(run.settings.output.path / name) for name in receipt.facts["films"]
    },
)
