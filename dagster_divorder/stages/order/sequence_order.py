"""sequence_order: the order of the packed sequences, by the strategy of `sequence.strategy`, one for each epoch.

`order` int64 (E, S): place in an epoch -> sequence of `packed_sequences`. Every section is ordered apart, and sections
follow each other in every epoch; the first epoch begins with the sequences that stay of the last plan, as they were
read. A partial sequence that `concat` and `cluster_packed` leave stays last,
where trainers drop or pad it. `figures` report how far copies stand apart, in and across epochs.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dagster_divorder.core.measure.runs import runs_in_order
from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.sections import section_seed
from dagster_divorder.core.packing import FILLED, PackedSequences, sequence_counts, with_all_tokens
from dagster_divorder.core.packing.coordinates import add_directions, random_axes, with_coordinates
from dagster_divorder.core.packing.report import sequence_spacing
from dagster_divorder.core.vectors.pca import Pca, project
from dagster_divorder.engine.local import count_workers
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, Made, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.mix.repeats import TrainingStream, item_records, load_stream, run_counter
from dagster_divorder.stages.order.greedy_order import check_permutation, remade
from dagster_divorder.stages.order.packed_sequences import load_bounds, load_packed
from dagster_divorder.stages.order.sections import each_section
from dagster_divorder.stages.topics.components import load_space, space_reads
from dagster_divorder.store.stages import Reader

AXES = 64
"""Dims of a sequence's mean vector, along random axes, that `balanced` and `f3` balance beside the traits: they spread
sequences with equal traits by content."""


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
    items = plan["document"][runs_in_order(plan["indptr"], order[0])[0]]
    _, first = np.unique(items, return_index=True)
    return items[np.sort(first)]


def vectors_are_balanced(settings: Settings) -> bool:
    """Whether the order of sequences balances their vectors."""
    return settings.strategy(settings.sequence.strategy).takes_coordinates


def vector_sums(run: Run, packed: PackedSequences) -> np.ndarray:
    """Sums of the sequences' vectors along random axes, weighted by the tokens that shares are of, int64 (S, C). Read
    fragment by fragment."""
    record_of, space, fragments = item_records(run), load_space(run), run.view.fragments
    tokens = run_counter(run, record_of)(packed)
    sequence = np.repeat(np.arange(len(packed), dtype=np.int32), np.diff(packed.indptr))
    sums = np.zeros((len(packed), 0), np.int64)
    each = space.files.at(fragments, record_of[packed.document])
    for runs, rows, arrays in counted(run.progress, "adding up vectors", each, len(fragments), "fragments"):
        vectors = arrays["vectors"]
        random = random_axes(vectors.shape[1], AXES, run.settings.seed)
        axes = Pca(mean=np.zeros(len(random)), axes=random)
        sums = sums if sums.size else np.zeros((len(packed), random.shape[1]), np.int64)
        directions = project(vectors, axes, threads=count_workers(0))
        add_directions(sums, sequence[runs], tokens[runs], rows, directions)
    return sums


def sequence_items(run: Run, stream: TrainingStream, packed: PackedSequences) -> Items:
    """The packed sequences as items without coordinates."""
    settings, traits, weights = run.settings, stream.traits, run.settings.order.traits
    counted = run_counter(run, stream.record_of)(packed)
    # The cluster first, as for documents.
    names = sorted(weights, key=lambda trait: (trait != "cluster", trait))
    codes = {name: traits.codes[name] for name in names}
    if settings.packing.packs or (np.diff(packed.indptr) != 1).any():
        counts, groups = sequence_counts(packed, codes, traits.sizes(), counted)
        items = Items(counts, groups, np.array([weights[name] for name in codes], np.float64))
        return with_all_tokens(items, packed, codes, traits.sizes())
    # Batches count records, so sequences are balanced as documents are: in tokens and in records.
    of_rows = {name: of[packed.document] for name, of in codes.items()}
    return document_items(counted, of_rows, weights, lengths=packed.length)


def _order_sequences(run: Run) -> Made:
    settings, stream, packed = run.settings, load_stream(run), load_packed(run)
    run.progress.note(f"ordering {len(packed):,} sequences ({settings.sequence.strategy})")
    items = sequence_items(run, stream, packed)
    frozen = run.receipt("packed_sequences").facts["frozen_sequences"]
    not_full = bool(settings.packing.method in FILLED and len(packed) > frozen and packed.padding[-1] > 0)
    bounds = load_bounds(run)[0].tolist()
    # Of one epoch the order of what stays is given.
    given = bounds[1] if frozen and settings.sequence.epochs == 1 else 0
    sums, orders = None, [np.arange(given)[np.newaxis]] if given else []
    if vectors_are_balanced(settings):
        sums = vector_sums(run, packed.part(given, len(packed)))
    full = np.minimum(bounds, len(packed) - not_full).tolist()

    def section(number: int) -> tuple[Items, bool, int]:
        number += bool(given)
        begin, end = bounds[number : number + 2]
        own = items.part(begin, end)
        if sums is not None and end > begin:
            own = with_coordinates(own, packed.part(begin, end), sums[begin - given : end - given])
        own, made = own.part(0, full[number + 1] - begin), number - (frozen > 0)
        return own, made < 0, section_seed(settings.seed, max(made, 0))

    count = len(bounds) - 1 - len(orders)
    orders += each_section(run, partial(order_sequences, settings=settings), count, section)
    orders = [begin + order for begin, order in zip(bounds, orders, strict=False)]
    ordered = np.concatenate(orders, axis=1)
    ordered = np.pad(ordered, ((0, 0), (0, int(not_full))), constant_values=len(packed) - 1)
    figures = {
        "strategy": settings.sequence.strategy,
        "sequences": len(packed),
        "epochs": settings.sequence.epochs,
        "copies": sequence_spacing(packed, ordered, run.copies[stream.record_of]),
    }
    return Made({"order": {"order": ordered}}, figures=figures)


def order_sequences(section: tuple[Items, bool, int], settings: Settings) -> np.ndarray:
    """Orders of the sequences of a section, int64 (E, S), from these, whether their order is the first epoch's, and the
    section's seed."""
    items, given, seed = section
    first = np.arange(items.counts.shape[0]) if given else None
    arguments = settings.order_arguments(settings.sequence.strategy, seed)
    return epoch_orders(items, settings.sequence.epochs, first=first, **arguments)


def _is_a_permutation(run: Run) -> Finding:
    sequences = run.receipt("packed_sequences").facts["sequences"]
    remedy = remade(run, "sequence_order", "order")
    return check_permutation(load_sequence_order(run), sequences, "sequences", remedy)


SEQUENCE_ORDER = WholeCorpus(
    name="sequence_order",
    version=8,
    description="The order of the training sequences (`sequence.strategy`). A balanced one keeps the corpus's own mix "
    "of `order.traits` in every window of training; with a curriculum it also follows a score.",
    reads=lambda settings: (
        *("raw_docs", "traits", "repeats", "packed_sequences"),
        *(space_reads(settings) if vectors_are_balanced(settings) else []),
    ),
    settings=("sequence", "order", "curriculum", "packing", "chats", "seed"),
    compute=_order_sequences,
    checks=(
        Check(
            name="sequence_order_is_a_permutation",
            description="Every epoch reads every training sequence exactly once.",
            check=_is_a_permutation,
            blocking=True,
        ),
    ),
)
