"""What an order of sequences balances beside the traits: mean vectors (`sequence.vectors`), documents a sequence."""

from __future__ import annotations

import numpy as np

from dagster_divorder.core.items import Items
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.packing.coordinates import add_directions, random_axes, with_coordinates
from dagster_divorder.core.pca import Pca, project
from dagster_divorder.engine.local import count_workers
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.space import chosen_space
from dagster_divorder.settings import Settings


def are_balanced(settings: Settings) -> bool:
    """Whether the order of sequences looks at their vectors."""
    return settings.sequence.vectors > 0 and settings.strategy(settings.sequence.strategy).takes_coordinates


def balance_vectors(run: Run, items: Items, packed: PackedSequences) -> Items:
    """The sequences of the plan with coordinates, where their order looks at vectors."""
    return with_coordinates(items, packed, vector_sums(run, packed)) if are_balanced(run.settings) else items


def vector_sums(run: Run, packed: PackedSequences) -> np.ndarray:
    """int64 (S, C): the vectors of the sequences along random axes; fragment by fragment."""
    view, space = load_view(run), chosen_space(run)
    sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
    sums, axes = np.zeros((len(packed), 0), np.int64), None
    parts = list(view.by_fragment(packed.document))
    fragments = [fragment for fragment, _, _ in parts]
    for (_, runs, rows), (_, vectors) in zip(parts, space.each(fragments), strict=True):
        if axes is None:
            dims = vectors.shape[1]
            random = random_axes(dims, run.settings.sequence.vectors, run.settings.seed)
            axes = Pca(mean=np.zeros(dims), axes=random, explained=0.0)
            sums = np.zeros((len(packed), random.shape[1]), np.int64)
        directions = project(vectors, axes, threads=count_workers(0))
        add_directions(sums, sequence[runs], packed.length[runs], rows, directions)
    return sums
