"""sequence_order: the order of the packed sequences, by the strategy of `sequence.strategy`, one for each epoch.

`order` int64 (E, S): place in an epoch -> sequence of `packed_sequences`. A partial sequence that `concat` and
`related` leave stays last, where trainers drop or pad it. If one schedule of a curriculum covers all epochs, the rows
are parts of one order, which has every sequence E times. Sequences that a trainer has consumed stay first. With
`order.separate_copies`, sequences with copies stand far apart, in and across epochs; `figures` report how far. Shards
are ordered separately and follow each other in every epoch.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dagster_divorder.core.measure.packed import runs_in_order
from dagster_divorder.core.order import Targets
from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.trait_targets import document_targets, sequence_targets
from dagster_divorder.core.packing import FILLED, PackedSequences
from dagster_divorder.core.packing.coordinates import add_directions, random_axes, with_coordinates
from dagster_divorder.core.packing.copies import sequence_spacing, sequence_times
from dagster_divorder.core.vectors.pca import Pca, project
from dagster_divorder.engine.local import count_workers
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, Made, WholeCorpus, versions
from dagster_divorder.settings import Settings
from dagster_divorder.stages.mix.repeats import (
    TrainingStream,
    load_stream,
    run_counter,
    stream_reads,
    stream_view,
)
from dagster_divorder.stages.order.greedy_order import (
    check_permutation,
    order_description,
    order_kinds,
    remade,
)
from dagster_divorder.stages.order.packed_sequences import (
    consumed_reads,
    load_packed,
    load_sequence_items,
    sequence_traits,
)
from dagster_divorder.stages.order.scores import score_reads, sequence_scores
from dagster_divorder.stages.output.shards import Parts, each_shard
from dagster_divorder.stages.topics.components import chosen_space_version, load_space, space_reads
from dagster_divorder.store.reader import Reader
from dagster_divorder.store.view import View


def load_sequence_order(run: Run) -> np.ndarray:
    """The current orders, int64 (E, S), an epoch a row."""
    return run.arrays("sequence_order", "order")["order"]


def output_is_whole(run: Reader) -> bool:
    """Whether every item of the stream is in the curated output."""
    figures = run.receipt("packed_sequences").figures
    return figures["method"] != "none" and not figures.get("left_out_documents")


def output_order(run: Reader) -> np.ndarray:
    """The items of the stream in the order of the curated output, int64 (n,): the order of the documents, without items
    that packing leaves out whole; if records are not packed, as the sequences first read them."""
    if run.receipt("packed_sequences").figures["method"] != "none":
        order = run.arrays("greedy_order", "order")["order"]
        if output_is_whole(run):
            return order
        return order[~np.isin(order, run.arrays("packed_sequences", "left_out_documents")["items"])]
    plan, order = run.arrays("packed_sequences", "plan"), run.arrays("sequence_order", "order")["order"]
    items = plan["document"][runs_in_order(plan["indptr"], first_reads(order))[0]]
    _, first = np.unique(items, return_index=True)
    return items[np.sort(first)]


def first_reads(order: np.ndarray) -> np.ndarray:
    """The sequences in the order in which epochs, int64 (E, S), first read them, int64 (S,): the first epoch, unless
    one schedule covers all."""
    _, first = np.unique(order, return_index=True)
    return order.reshape(-1)[np.sort(first)]


def vectors_are_balanced(settings: Settings) -> bool:
    """Whether the order of sequences balances their vectors."""
    return settings.sequence.vectors > 0 and settings.strategy(settings.sequence.strategy).takes_coordinates


def vector_sums(run: Run, packed: PackedSequences, view: View | None = None) -> np.ndarray:
    """Sums of the sequences' vectors along random axes, weighted by the tokens that shares are of, int64 (S, C). Read
    fragment by fragment. view: indexed by the plan's documents, by default the stream's."""
    view, space = stream_view(run) if view is None else view, load_space(run)
    tokens = run_counter(run, view)(packed)
    sequence = np.repeat(np.arange(len(packed), dtype=np.int32), np.diff(packed.indptr))
    sums, axes = np.zeros((len(packed), 0), np.int64), None
    each = space.files.at(view.documents, view.document_row[packed.document])
    for runs, rows, arrays in counted(
        run.progress, "adding up vectors", each, len(view.documents), "fragments"
    ):
        vectors = space.transform(arrays["vectors"])
        if axes is None:
            dims = vectors.shape[1]
            random = random_axes(dims, run.settings.sequence.vectors, run.settings.seed)
            axes = Pca(mean=np.zeros(dims), axes=random, explained=0.0)
            sums = np.zeros((len(packed), random.shape[1]), np.int64)
        directions = project(vectors, axes, threads=count_workers(0))
        add_directions(sums, sequence[runs], tokens[runs], rows, directions)
    return sums


def sequence_items(run: Run, stream: TrainingStream, packed: PackedSequences) -> tuple[Items, Targets | None]:
    """(the packed sequences as items without coordinates, their targets)."""
    settings, traits = run.settings, stream.traits
    names = sequence_traits(settings.order.traits)
    if settings.packing.packs or (np.diff(packed.indptr) != 1).any():
        items = load_sequence_items(run, traits)
        return items, sequence_targets(settings.order.targets, traits, names, items)
    # Batches count records, so sequences are balanced as documents are: in tokens and in records.
    items = document_items(
        run_counter(run, stream.view)(packed),
        {name: traits.codes[name][packed.document] for name in names},
        settings.order.traits,
        within=settings.order.within,
        lengths=packed.length,
    )
    return items, document_targets(settings.order.targets, traits, names, items)


class Sequences(NamedTuple):
    """Packed sequences to order, as items and as a plan. copies: int64 (N,), a number for each document of the plan,
    equal for copies, or None if copies do not matter. consumed: int64 (n,), the sequences as they
    were read, which come first. scores: float64 (S,), for a curriculum, or None."""

    items: Items
    packed: PackedSequences
    copies: np.ndarray | None
    consumed: np.ndarray
    scores: np.ndarray | None = None


def _order_sequences(run: Run) -> Made:
    settings, stream, packed = run.settings, load_stream(run), load_packed(run)
    copies = stream.view.copies if settings.copies_apart else None
    run.progress.note(f"ordering {len(packed):,} sequences ({settings.sequence.strategy})")
    items, targets = sequence_items(run, stream, packed)
    sums = vector_sums(run, packed) if vectors_are_balanced(settings) else None
    scores = sequence_scores(run, stream, packed)
    consumed = consumed_reads(run)
    bounds = [0, *packed.shards.tolist(), len(packed)]

    def part(shard: int) -> Sequences:
        begin, end = bounds[shard : shard + 2]
        own_items, own_plan, own_copies = items.part(begin, end), packed.part(begin, end), None
        if sums is not None and end > begin:
            own_items = with_coordinates(own_items, own_plan, sums[begin:end])
        if copies is not None:
            documents, number = np.unique(own_plan.document, return_inverse=True)
            own_plan, own_copies = replace(own_plan, document=number), copies[documents]
        own_scores = None if scores is None else scores[begin:end]
        return Sequences(own_items, own_plan, own_copies, consumed[: 0 if shard else None], own_scores)

    order_shard = partial(order_sequences, settings=settings, targets=targets)
    orders = each_shard(run, order_shard, Parts(len(bounds) - 1, part))
    # A shard has the same place in every epoch, so that its sequences repeat about an epoch later.
    ordered = np.concatenate([begin + order for begin, order in zip(bounds, orders, strict=False)], axis=1)
    if copies is None:
        copies = stream.view.copies
    step = min(settings.packing.piece_tokens or settings.sequence.length, settings.sequence.length)
    figures = {
        "strategy": settings.sequence.strategy,
        "sequences": len(packed),
        "epochs": settings.sequence.epochs,
        "copies": asdict(sequence_spacing(packed, ordered, copies, step=step)),
    }
    return Made({"order": {"order": ordered}}, figures=figures)


def order_sequences(sequences: Sequences, settings: Settings, targets: Targets | None) -> np.ndarray:
    """Orders of packed sequences, int64 (E, S); consumed sequences come first in the first epoch."""
    items, packed, copies, consumed, scores = sequences
    frozen = int(consumed.max(initial=-1)) + 1
    not_full = settings.packing.method in FILLED and len(packed) > frozen and packed.padding[-1] > 0
    full_sequences = len(packed) - bool(not_full)
    full, times = items.part(0, full_sequences), None
    if copies is not None:
        as_packed = settings.sequence.strategy == "original"
        # Along a schedule, copies are kept apart inside windows, not between the parts of the plan.
        plan = replace(packed, parts=packed.parts[:0]) if settings.curriculum.on else packed
        times = sequence_times(plan, copies, frozen=frozen, as_packed=as_packed).first(full_sequences)
    orders = epoch_orders(
        full.counts,
        full.groups,
        settings.sequence.epochs,
        **settings.plan_arguments(settings.sequence.strategy, int(packed.length.sum()), packed=True),
        scores=None if scores is None else scores[:full_sequences],
        weights=items.weights,
        coordinates=full.coordinates,
        copies=times,
        frozen=consumed,
        together=settings.schedule_epochs > 1,
        targets=targets,
    )
    return np.pad(orders, ((0, 0), (0, int(not_full))), constant_values=full_sequences)


def _is_a_permutation(run: Run) -> Finding:
    sequences = run.receipt("packed_sequences").facts["sequences"]
    remedy = remade(run, "sequence_order", "order")
    orders, epochs = load_sequence_order(run), run.settings.schedule_epochs
    rows = orders.reshape(1, -1) if epochs > 1 else orders
    return check_permutation(rows, sequences, "sequences", remedy, epochs)


def _sequence_order_reads(settings: Settings) -> tuple[str, ...]:
    vectors = space_reads(settings) if vectors_are_balanced(settings) else ()
    return (
        "raw_docs",
        *vectors,
        "traits",
        *stream_reads(settings),
        *score_reads(settings),
        "packed_sequences",
    )


def _sequence_order_settings(settings: Settings) -> dict[str, Any]:
    sequence, strategy = settings.sequence, settings.strategy(settings.sequence.strategy)
    reads_batch = "batch" in strategy.reads or settings.copies_apart
    return {
        "strategy": sequence.strategy,
        "options": settings.strategy_key(sequence.strategy),
        "traits": settings.order.traits,
        "targets": settings.order.targets,
        "separate_copies": settings.copies_apart,
        "sequence_length": sequence.length if "sequence_length" in strategy.reads else None,
        "batch": sequence.batch if reads_batch else None,
        "vectors": sequence.vectors if vectors_are_balanced(settings) else 0,
        "epochs": sequence.epochs,
        "pieces": settings.packing.piece_tokens,
        "seed": settings.seed,
        **settings.counted_key,
        **settings.curriculum_key,
        **({} if settings.packing.packs else {"packs": False, **settings.within_key}),
    }


def _inputs(run: Run) -> dict[str, Any]:
    vectors = chosen_space_version(run) if vectors_are_balanced(run.settings) else None
    reads = (*stream_reads(run.settings), *score_reads(run.settings))
    read = ("packed_sequences", "traits", *reads)
    return {**versions(run, *read), "vectors": vectors}


SEQUENCE_ORDER = WholeCorpus(
    name="sequence_order",
    version=6,
    group="ordering",
    kinds=lambda settings: order_kinds(settings, settings.sequence.strategy),
    description=lambda settings: order_description(
        settings, "training sequences", settings.sequence.strategy
    ),
    reads=_sequence_order_reads,
    settings=_sequence_order_settings,
    # The same numbers over another plan are another order of tokens, so the key is the version.
    inputs=_inputs,
    compute=_order_sequences,
    checks=(
        Check(
            name="sequence_order_is_a_permutation",
            description="Every epoch reads every training sequence exactly once. If one schedule covers all epochs, "
            "they read every sequence once an epoch on average.",
            check=_is_a_permutation,
            blocking=True,
        ),
    ),
)
