"""packed_sequences: which tokens make which training sequence. It is a plan; only exports gather tokens.

The documents, in the order of `greedy_order`, are packed into sequences of `sequence.length` tokens by
`packing.method`. `plan`: runs of tokens, document int64 (Q,), an item of the stream (`stages.mix.repeats`), start and
length int64 (Q,), and indptr int64 (S+1,): sequence s holds the runs indptr[s]:indptr[s+1], one after another.

Sequences that stay of the last plan come first, unchanged. Every section is packed apart (`stages.order.sections`).
What does not fill its last sequence opens the next section (`concat`, `cluster_packed`), so that the plan has at most
one partial sequence. `sections` int64 (K + 1,), `stretches` int64 (T + 1,): the first sequences of sections, the
beginning that stays being the first one, and of stretches of one asked mix, and the number of all sequences. With
`packing.end_of_text` a document has one more token, its last, the end-of-text token.

With a loss mask, a piece without a trained token is in no sequence: for example, a conversation whose answers were
truncated, or, with `chats.train_on = "last"`, one whose last turn the record excludes from training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.measure.runs import RunCounter
from dagster_divorder.core.order.sections import section_seed
from dagster_divorder.core.packing import (
    FILLED,
    PackedSequences,
    Pieces,
    cut,
    join,
    packing_report,
    remaining,
)
from dagster_divorder.core.packing import pack as pack_pieces
from dagster_divorder.core.packing.report import coverage
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, Made, Shown, Text, WholeCorpus
from dagster_divorder.stages.mix.repeats import TrainingStream, load_stream, run_counter
from dagster_divorder.stages.order.frozen import Frozen, behind_beginning, load_frozen
from dagster_divorder.stages.order.greedy_order import load_order, remade
from dagster_divorder.stages.order.sections import keeps_copies_apart
from dagster_divorder.stages.text.loss_mask import has_loss_mask
from dagster_divorder.stages.topics.components import chosen_vectors, space_reads
from dagster_divorder.store.stages import map_vectors
from dagster_divorder.store.state import Receipt

LEFT_OUT = {"truncate": "their ends are left out", "drop": "they are left out"}
"""`packing.too_long` -> what happens to documents that are too long, unless the packing method decides."""


def load_packed(run: Run) -> PackedSequences:
    """The current plan."""
    return unpack_plan(run.arrays("packed_sequences", "plan"))


def load_bounds(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Where sections, int64 (K + 1,), and stretches, int64 (T + 1,), begin and end in the current plan."""
    arrays = run.arrays("packed_sequences", "plan")
    return arrays["sections"], arrays["stretches"]


@dataclass(frozen=True, eq=False)
class StreamPieces:
    """The documents of the stream as pieces."""

    run: Run
    stream: TrainingStream

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each item when packed, int64 (M,)."""
        return self.stream.traits.tokens.astype(np.int64) + self.run.settings.packing.end_of_text

    @cached_property
    def trained(self) -> RunCounter:
        """Counts the trained tokens of pieces, int64 (P,)."""
        return run_counter(self.run, self.stream.record_of)

    def whole(self, items: np.ndarray) -> Pieces:
        """Items, int64 (n,), as pieces."""
        return Pieces(items, np.broadcast_to(np.int64(0), items.shape), self.lengths[items])

    def fitted(self, items: np.ndarray) -> Pieces:
        """The pieces of items, int64 (n,), in their order, that `packing.too_long` leaves."""
        documents, settings = self.whole(items), self.run.settings
        rule, length = settings.packing.too_long, settings.sequence.length
        if rule == "truncate":
            documents = Pieces(documents.document, documents.start, np.minimum(documents.length, length))
        elif rule == "drop":
            documents = documents.take(documents.length <= length)
        # Where some tokens do not count, each part of a document is judged separately.
        parts = has_loss_mask(settings) and settings.packing.method not in FILLED
        return cut(documents, length) if parts else documents

    def are_trained(self, pieces: Pieces | PackedSequences) -> np.ndarray:
        """Which pieces hold a trained token, bool (P,); pieces without tokens count as trained."""
        return (self.trained(pieces) > 0) | (pieces.length == 0)

    def left_out(self) -> tuple[dict[str, int], np.ndarray]:
        """(figures of what packing leaves out; items that are left out whole, int64 rising)."""
        lengths = self.lengths
        pieces = self.fitted(np.arange(len(lengths)))
        kept = np.bincount(pieces.document, pieces.length, len(lengths)).astype(np.int64)
        without = pieces.take(~self.are_trained(pieces))
        untrained = np.bincount(without.document, without.length, len(lengths)).astype(np.int64)
        left, nothing = lengths - kept + untrained, (untrained > 0) & (untrained == kept)
        wholly = np.flatnonzero((left == lengths) & (lengths > 0))
        figures = {
            "too_long_documents": int((lengths > self.run.settings.sequence.length).sum()),
            "too_long_tokens_left_out": int((lengths - kept).sum()),
            "untrained_documents": int(nothing.sum()),
            "untrained_tokens_left_out": int(untrained.sum()),
            "left_out_documents": len(wholly),
        }
        return figures, wholly


def left_out_lines(figures: Mapping[str, Any], too_long: str) -> list[str]:
    """What packing leaves out, as sentences. figures: of packed_sequences. too_long: the setting."""
    lines = []
    documents, tokens = figures.get("too_long_documents", 0), figures.get("too_long_tokens_left_out", 0)
    if documents and too_long in LEFT_OUT:
        but = f", and {tokens:,} tokens are in no sequence" if tokens else ""
        lines.append(
            f"{documents:,} records are longer than a sequence: {LEFT_OUT[too_long]}{but} (packing.too_long)"
        )
    if tokens := figures.get("untrained_tokens_left_out", 0):
        lines.append(
            f"{tokens:,} tokens in parts without a trained one are in no sequence, with them all of "
            f"{figures['untrained_documents']:,} records (chats.train_on)"
        )
    if sequences := figures.get("untrained_sequences", 0):
        lines.append(
            f'{sequences:,} sequences have no trained token, and so no loss; packing.method "best_fit" or "none" '
            "makes none"
        )
    return lines


def _pack_documents(run: Run) -> Made:
    stream, frozen = load_stream(run), load_frozen(run)
    traits = stream.traits
    documents = StreamPieces(run, stream)
    packed, bounds = _pack(documents, frozen)
    facts = {
        "sequences": len(packed),
        "sequence_length": run.settings.sequence.length,
        "tokens_key": run.receipt("token_counts").key,
        "end_of_text": run.settings.packing.end_of_text,
        "frozen_sequences": len(frozen.sequences) if frozen else 0,
        "left_out": run.receipt("base_model").facts["left_out"],
    }
    figures = {
        "method": run.settings.packing.method,
        "sequence_length": run.settings.sequence.length,
        "frozen_sequences": facts["frozen_sequences"],
        "last_sequence_tokens": int(packed.tokens[-1]) if len(packed) else 0,
        "records": len(distinct_values(stream.record_of[packed.document])),
        **packing_report(packed, traits.codes["cluster"]),
    }
    counts, wholly = documents.left_out()
    trained = np.concatenate([[0], np.cumsum(documents.trained(packed))])
    figures |= counts | {"untrained_sequences": int((np.diff(trained[packed.indptr]) == 0).sum())}
    if trained[-1] < figures["tokens"]:
        figures["trained_tokens"] = int(trained[-1])
    for line in left_out_lines(figures, run.settings.packing.too_long):
        run.progress.note(line)
    if wholly.size and not len(packed):
        raise InputError(
            f"packing leaves out all {len(traits.tokens):,} records: "
            f"{figures['too_long_documents']:,} are longer than a sequence of {run.settings.sequence.length:,} "
            f"tokens, and {figures['untrained_documents']:,} have no trained token left; make sequence.length "
            'larger, or set packing.too_long to "cut" or chats.train_on to "assistant"'
        )
    plan = {name: np.atleast_1d(value) for name, value in vars(packed).items()}
    return Made({"plan": plan | bounds, "left_out_documents": {"items": wholly}}, facts, figures)


def _pack(documents: StreamPieces, frozen: Frozen | None) -> tuple[PackedSequences, dict[str, np.ndarray]]:
    """(the plan, its `sections` and `stretches`)."""
    run, stream = documents.run, documents.stream
    settings, method = run.settings, run.settings.packing.method
    made = load_order(run)
    pieces = _pieces_to_pack(documents, made.items, frozen.sequences if frozen else None)
    place = np.empty(len(stream.traits.tokens), np.int64)
    place[made.items] = np.arange(len(made.items))
    bounds = np.searchsorted(place[pieces.document], made.sections).tolist()
    vectors = map_vectors(run.store, run.view, chosen_vectors(run)) if method == "cluster_packed" else None

    def vectors_of(records: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        assert vectors is not None
        return vectors[records[numbers]].astype(np.float32, copy=False)

    copies = run.copies[stream.record_of] if keeps_copies_apart(settings) else None
    plans, carried = [frozen.sequences] if frozen else [], pieces.take(slice(0, 0))
    for number in range(len(bounds) - 1):
        own, seed = pieces.take(slice(*bounds[number : number + 2])), section_seed(settings.seed, number)
        own = carried.followed_by(own)
        plan = pack_pieces(
            own,
            method=method,
            sequence_length=settings.sequence.length,
            seed=seed,
            labels=stream.traits.codes["cluster"][own.document],
            vectors=partial(vectors_of, stream.record_of[own.document]) if vectors is not None else None,
            copies=None if copies is None else copies[own.document],
        )
        carried = carried.take(slice(0, 0))
        if method in FILLED and number < len(bounds) - 2 and len(plan) and plan.padding[-1]:
            last = plan.part(len(plan) - 1, len(plan))
            carried = Pieces(last.document, last.start, last.length)
            plan = replace(plan.part(0, len(plan) - 1), without_tokens=plan.without_tokens)
        plans.append(plan)
    packed = join(*plans)
    ends = np.cumsum([len(plan) for plan in plans])
    of_stretches = ends[-len(made.stretch) :][np.diff(made.stretch, append=-1) != 0]
    stretches = np.concatenate([frozen.stretches if frozen else [0], of_stretches])
    return packed, {"sections": np.append(0, ends), "stretches": np.unique(stretches).astype(np.int64)}


def _pieces_to_pack(documents: StreamPieces, items: np.ndarray, consumed: PackedSequences | None) -> Pieces:
    """The pieces of some items of the stream, in order, without consumed tokens."""
    pieces = documents.fitted(items)
    if consumed:
        pieces = remaining(pieces, consumed)
    return pieces.take(documents.are_trained(pieces))


def unpack_plan(arrays: dict[str, np.ndarray]) -> PackedSequences:
    """The plan that `plan` holds."""
    document, start, length, indptr = (arrays[name] for name in ("document", "start", "length", "indptr"))
    numbers = int(arrays["sequence_length"][0]), int(arrays["without_tokens"][0])
    return PackedSequences(document, start, length, indptr, *numbers)


def runs_of(packed: PackedSequences, records: np.ndarray) -> dict[str, np.ndarray]:
    """The plan as a table, int64 (Q,): sequence, document (position among the accepted records), start, length.
    records: the record of each item of the stream."""
    sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
    document = records[packed.document]
    return {"sequence": sequence, "document": document, "start": packed.start, "length": packed.length}


def _no_token_lost(run: Run) -> Finding:
    stream, settings = load_stream(run), run.settings
    tokens = run.column("token_counts", "lengths")[stream.record_of]
    lengths, packed = tokens.astype("int64") + settings.packing.end_of_text, load_packed(run)
    before = int(packed.length.sum())
    packed = _with_left_out(StreamPieces(run, stream), packed)
    left = int(packed.length.sum()) - before
    but = f", but for {left:,} that are left out on purpose" if left else ""
    covered = coverage(packed, lengths)
    passed = not (covered.missing or covered.extra)
    text = f"{covered.tokens:,} tokens of {len(lengths):,} documents, each in exactly one sequence{but}."
    if not passed:
        text = (
            f"Of {covered.tokens:,} tokens, {covered.missing:,} are in no sequence; {covered.extra:,} tokens of "
            "sequences are there twice, or in no document."
        )
    remedy = f"{remade(run, 'packed_sequences', 'plan')}; do not train on an output of this plan"
    return Finding(passed=passed, text=text, remedy=remedy)


def _with_left_out(documents: StreamPieces, packed: PackedSequences) -> PackedSequences:
    """The plan, followed by the tokens that are left out on purpose: of documents that are too long, or without a
    trained token in what was to be packed, and what `greedy_order` leaves unread."""
    run, settings = documents.run, documents.run.settings
    consumed = packed.part(0, run.receipt("packed_sequences").facts["frozen_sequences"])
    # Only a rest, or a document of the beginning, stays unread: another one that no section has is lost.
    unread = np.zeros(len(documents.lengths), bool)
    unread[consumed.document] = True
    made = load_order(run)
    unread[made.order[: run.receipt("greedy_order").figures["frozen_documents"]]] = True
    unread[made.items] = False
    items = np.arange(len(documents.lengths))
    pieces, whole = _pieces_to_pack(documents, items[~unread], consumed), documents.whole(items)
    left = remaining(whole, pieces.followed_by(Pieces(consumed.document, consumed.start, consumed.length)))
    if settings.packing.too_long != "cut":
        unread |= documents.lengths > settings.sequence.length
    left = left.take(unread[left.document] | ~documents.are_trained(left))
    return join(packed, replace(consumed, **vars(left), indptr=np.array([0, len(left)])))


def _check_settings(run: Run) -> None:
    # A format that the first records decide is not known when the settings are loaded.
    if fault := run.settings.packing.fault(run.settings.forms):
        raise InputError(fault)


def _show_packed_sequences(run: Run, receipt: Receipt) -> Shown:
    lines = left_out_lines(receipt.figures, run.settings.packing.too_long)
    return {"left_out": Text("\n".join(f"- {line}" for line in lines))} if lines else {}


PACKED_SEQUENCES = WholeCorpus(
    name="packed_sequences",
    version=11,
    description="Which tokens make which training sequence: the ordered documents, packed to the sequence length.",
    reads=lambda settings: (
        *("raw_docs", "token_counts", "traits", "repeats", "greedy_order", "frozen"),
        *(space_reads(settings) if settings.packing.method == "cluster_packed" else []),
    ),
    settings=("packing", "order", "mixing", "sequence", "chats", "seed"),
    decided_by=lambda run: behind_beginning(run, "packed_sequences"),
    doing="packing sequences",
    check=_check_settings,
    compute=_pack_documents,
    show=_show_packed_sequences,
    checks=(
        Check(
            name="no_token_lost",
            description="Every token of every document is in exactly one training sequence: none is lost, none is "
            "repeated. Only packing.too_long and the loss mask leave tokens out.",
            check=_no_token_lost,
            blocking=True,
        ),
    ),
)
