"""packed_sequences: which tokens make which training sequence. It is a plan; only exports gather tokens.

The documents, in the order of `greedy_order`, are packed into sequences of `sequence.length` tokens by
`packing.method`. `plan`: runs of tokens, document int64 (Q,), an item of the stream (`stages.mix.repeats`), start and
length int64 (Q,), and indptr int64 (S+1,): sequence s holds the runs indptr[s]:indptr[s+1], one after another. `rows`:
the tokens of each trait value in each sequence, CSR (indptr, indices, data), and groups, one for each trait, sorted by
name; only trained tokens if shares are of trained tokens.

Copies: `related` never puts copies into one sequence; with `order.separate_copies` no method does, and the plan names
the parts that keep them apart, for `sequence_order`. With `packing.end_of_text` a document has one more token, its
last, the end-of-text token. Sequences that a trainer has consumed (`order.frozen_tokens`) come first, unchanged; the
others hold all other tokens. If a sequence was read twice, `consumed` has the sequences as they were read (`reads`).
Along a curriculum, each window of its schedule is packed separately, so that a sequence holds documents of similar
score. Shards of the documents are packed separately. Their remainders, each less than a sequence, are packed together
at the end of the last shard, so that the plan has at most one partial sequence. `shards` has the first sequences of the
shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dagster_divorder.core.order.curricula import windows_of
from dagster_divorder.core.order.items import Items
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.core.packing import (
    FILLED,
    PackedSequences,
    Pieces,
    cut,
    join,
    packing_report,
    remaining,
    sequence_counts,
    with_all_tokens,
)
from dagster_divorder.core.packing import pack as pack_pieces
from dagster_divorder.core.packing.coverage import coverage
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Check, Finding, Made, Shown, Table, Text, WholeCorpus, versions
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.ids import find_records
from dagster_divorder.stages.mix.repeats import (
    TrainingStream,
    load_stream,
    run_counter,
    stream_reads,
)
from dagster_divorder.stages.order.frozen import Frozen, beginning_version, load_frozen
from dagster_divorder.stages.order.greedy_order import (
    Documents,
    document_order_settings,
    load_order,
    load_shards,
    order_documents,
    remade,
)
from dagster_divorder.stages.order.pieces import StreamPieces, leaves_out, left_out_lines
from dagster_divorder.stages.order.scores import score_reads, stream_scores
from dagster_divorder.stages.output.shards import Parts, each_shard
from dagster_divorder.stages.topics.components import chosen_vectors, space_reads
from dagster_divorder.store.space import map_vectors
from dagster_divorder.store.state import Receipt

NOTHING = np.zeros(0, np.int64)


class ToPack(NamedTuple):
    """Pieces to pack, with their traits. copies: int64 (P,), equal for copies, or None. scores:
    float64 (P,), for a curriculum, or None. consumed: number of first pieces that are not packed again, but only
    ordered before the others."""

    pieces: Pieces
    traits: Traits
    copies: np.ndarray | None
    scores: np.ndarray | None = None
    consumed: int = 0


def consumed_reads(run: Run) -> np.ndarray:
    """The sequences that a trainer has consumed, as they were read, int64 (n,)."""
    receipt = run.receipt("packed_sequences")
    if "consumed" in receipt.files:
        return run.arrays("packed_sequences", "consumed")["reads"]
    return np.arange(receipt.facts["frozen_sequences"])


def load_packed(run: Run) -> PackedSequences:
    """The current plan."""
    return unpack_plan(run.arrays("packed_sequences", "plan"))


def batch_tokens(run: Run, packed: PackedSequences, counted: np.ndarray) -> int:
    """Counted tokens in a batch of the plan's sequences, by the mean sequence. counted: int64 (Q,), the tokens of each
    run that shares are of."""
    sequence = run.settings.sequence
    if not run.settings.whole_windows:
        return sequence.length * sequence.batch
    return max(1, round(int(counted.sum()) * sequence.batch / max(1, len(packed))))


def _pack_documents(run: Run) -> Made:
    stream, frozen = load_stream(run), load_frozen(run)
    traits = stream.traits
    documents = StreamPieces(run, stream)
    packed = _pack(documents, frozen)
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
        **asdict(packing_report(packed, traits.codes["cluster"])),
    }
    rows = _row_arrays(packed, traits, run_counter(run, stream.view)(packed))
    files: dict[str, Any] = {"plan": _plan_arrays(packed), "rows": rows}
    if frozen and len(frozen.reads) > len(frozen.sequences):
        files["consumed"] = {"reads": frozen.reads}
    if leaves_out(run.settings):
        counts, files["left_out"], wholly = documents.left_out()
        files["left_out_documents"] = {"items": wholly}
        trained = np.concatenate([[0], np.cumsum(documents.are_trained(packed))])
        untrained = int((np.diff(trained[packed.indptr]) == 0).sum())
        figures |= counts | {"untrained_sequences": untrained}
        if run.settings.masked:
            figures["trained_tokens"] = int(documents.trained(packed).sum())
        for line in left_out_lines(figures, run.settings.packing.too_long):
            run.progress.note(line)
        if not len(packed):
            raise InputError(
                f"packing leaves out all {len(traits.tokens):,} records: "
                f"{figures['too_long_documents']:,} are longer than a sequence of {run.settings.sequence.length:,} "
                f"tokens, and {figures['untrained_documents']:,} have no trained token left; make sequence.length "
                'larger, or set packing.too_long to "cut" or chats.train_on to "assistant"'
            )
    return Made(files, facts, figures)


def _pack(documents: StreamPieces, frozen: Frozen | None) -> PackedSequences:
    run, stream = documents.run, documents.stream
    settings, method = run.settings, run.settings.packing.method
    pieces, bounds = _pieces_of_shards(documents, frozen)
    separate = bool(settings.copies_apart) or method == "related"
    # Found once for all shards, because it takes a pass over all records.
    copies = stream.view.copies if separate or frozen else None
    pack_part = partial(
        _pack_part,
        settings=settings,
        # `concat` and `none` keep the order of the documents, in which copies stand apart unless some are consumed.
        keep_apart=separate and (method not in ("concat", "none") or frozen is not None),
        consumed=_copies_of(settings, copies, frozen.sequences) if frozen and copies is not None else NOTHING,
        consumed_tokens=int(frozen.sequences.length.sum()) if frozen else 0,
        vectors=_vectors_of(run, stream) if method == "related" else None,
    )
    counted = run_counter(run, stream.view) if settings.packing.piece_tokens else None
    to_pack = partial(_to_pack, documents, copies if separate else None, counted, frozen)
    parts = Parts(len(bounds) - 1, lambda shard: to_pack(pieces.take(slice(*bounds[shard : shard + 2]))))
    # The vectors stay in this process.
    packed = list(map(pack_part, parts) if method == "related" else each_shard(run, pack_part, parts))
    remainders = None
    if len(packed) > 1 and method in FILLED:
        packed, remainders = _without_last(packed)
    consumed = [frozen.sequences] if frozen else []
    shards = np.cumsum([sum(map(len, consumed)), *map(len, packed)])[1:-1]
    if remainders is not None:
        packed.append(pack_part(to_pack(remainders), keep_apart=separate))
    return replace(join(*consumed, *packed), shards=shards)


def _pieces_of_shards(documents: StreamPieces, frozen: Frozen | None) -> tuple[Pieces, list[int]]:
    """(the pieces to pack, in the order of the documents; the bounds of their shards, with the end of the last)."""
    order, begins = load_order(documents.run), load_shards(documents.run)
    pieces = _pieces_to_pack(documents, order, frozen.sequences if frozen else None)
    bounds = [0, len(pieces)]
    if len(begins):
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        bounds[1:1] = np.searchsorted(place[pieces.document], begins).tolist()
    return pieces, bounds


def _pieces_to_pack(documents: StreamPieces, items: np.ndarray, consumed: PackedSequences | None) -> Pieces:
    """The pieces of some items of the stream, in order, without consumed and cut tokens."""
    run, pieces = documents.run, documents.fitted(items)
    if consumed:
        pieces = remaining(pieces, consumed)
    if run.settings.masked:
        pieces = pieces.take(documents.are_trained(pieces))
    if run.settings.order.cut:
        out = documents.stream.items(find_records(run, run.settings.order.cut))
        pieces = pieces.take(~np.isin(pieces.document, out))
    return pieces


def _without_last(packed: list[PackedSequences]) -> tuple[list[PackedSequences], Pieces]:
    """(the plans without partial last sequences; the pieces of these sequences)."""
    full_plans, partial_sequences = [], []
    for plan in packed:
        end = len(plan) - bool(len(plan) and plan.padding[-1])
        full_plans.append(replace(plan.part(0, end), without_tokens=plan.without_tokens))
        partial_sequences.append(plan.part(end, len(plan)))
    remainders = join(*partial_sequences)
    return full_plans, Pieces(remainders.document, remainders.start, remainders.length)


def _vectors_of(run: Run, stream: TrainingStream) -> Callable[[np.ndarray], np.ndarray]:
    """A function from items to their vectors, float32 (n, D)."""
    vectors = map_vectors(run.store, run.view, chosen_vectors(run))
    return lambda items: vectors[stream.record(items)].astype(np.float32, copy=False)


def _to_pack(
    documents: StreamPieces,
    copies: np.ndarray | None,
    counted: Callable[[Pieces], np.ndarray] | None,
    frozen: Frozen | None,
    pieces: Pieces,
) -> ToPack:
    """copies: of the documents, or None if they do not matter. counted: `run_counter`, if pieces are
    ordered."""
    run, stream = documents.run, documents.stream
    settings, traits, scores, consumed = run.settings, stream.traits, None, 0
    ordered = settings.packing.piece_tokens > 0
    if ordered:
        pieces = cut(pieces, settings.packing.piece_tokens)
        ranks = stream_scores(run, stream)
        if frozen and ranks is not None:
            # The schedule continues after the consumed beginning.
            runs, consumed = frozen.sequences, len(frozen.sequences.length)
            pieces = Pieces(
                np.concatenate([runs.document, pieces.document]),
                np.concatenate([runs.start, pieces.start]),
                np.concatenate([runs.length, pieces.length]),
            )
        scores = None if ranks is None else ranks[pieces.document]
    of_pieces = replace(
        traits,
        tokens=pieces.length,
        trained=None if counted is None or traits.trained is None else counted(pieces),
        codes={
            trait: codes[pieces.document]
            for trait, codes in traits.codes.items()
            if ordered or trait == "cluster"
        },
    )
    own_copies = None if copies is None else _copies_of(settings, copies, pieces)
    return ToPack(pieces, of_pieces, own_copies, scores, consumed)


def _pack_part(
    part: ToPack,
    *,
    settings: Settings,
    keep_apart: bool,
    consumed: np.ndarray,
    consumed_tokens: int,
    vectors: Callable[[np.ndarray], np.ndarray] | None,
) -> PackedSequences:
    """The plan of some pieces. With `packing.piece_tokens` they are first ordered by length and their documents'
    traits. Along a curriculum each window of the schedule is packed separately. keep_apart: copies go into different
    sequences. vectors: for `related` (`_vectors_of`)."""
    pieces, traits, copies, scores, before = part
    if settings.packing.piece_tokens:
        separated, frozen = copies if settings.copies_apart else None, np.arange(before) if before else None
        in_order = order_documents(Documents(traits, separated, frozen, scores), settings)[before:]
        pieces, traits = pieces.take(in_order), traits.take(in_order)
        copies = None if copies is None else copies[in_order]
    windows = None
    if settings.curriculum.on and len(pieces):
        left = int(pieces.length.sum())
        share = settings.curriculum_window(consumed_tokens + left) * (consumed_tokens + left) / max(1, left)
        schedule, begin = settings.curriculum.pieces, consumed_tokens / max(1, consumed_tokens + left)
        windows = windows_of(pieces.length, min(1.0, share), 1, schedule, begin).bounds
    return pack_pieces(
        pieces,
        method=settings.packing.method,
        sequence_length=settings.sequence.length,
        seed=settings.seed,
        labels=traits.codes["cluster"],
        vectors=None if vectors is None else lambda numbers: vectors(pieces.document[numbers]),
        copies=copies if keep_apart else None,
        consumed=consumed,
        windows=windows,
    )


def _copies_of(settings: Settings, copies: np.ndarray, runs: Pieces | PackedSequences) -> np.ndarray:
    """A number for each run of tokens, equal for copies: for runs of documents with the same number in `copies`, with
    `packing.piece_tokens` only of the same piece."""
    of_text = copies[runs.document]
    if not settings.packing.piece_tokens:
        return of_text
    return of_text << 31 | runs.start // settings.packing.piece_tokens


def _plan_arrays(packed: PackedSequences) -> dict[str, np.ndarray]:
    return {
        "document": packed.document,
        "start": packed.start,
        "length": packed.length,
        "indptr": packed.indptr,
        "sequence_length": np.array([packed.sequence_length]),
        "without_tokens": np.array([packed.without_tokens]),
        "parts": packed.parts,
        **({"shards": packed.shards} if len(packed.shards) else {}),
    }


def unpack_plan(arrays: dict[str, np.ndarray]) -> PackedSequences:
    return PackedSequences(
        document=arrays["document"],
        start=arrays["start"],
        length=arrays["length"],
        indptr=arrays["indptr"],
        sequence_length=int(arrays["sequence_length"][0]),
        without_tokens=int(arrays["without_tokens"][0]),
        parts=arrays["parts"],
        shards=arrays.get("shards", NOTHING),
    )


def _row_arrays(packed: PackedSequences, traits: Traits, counted: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of `rows`. counted: int64 (Q,), tokens of each run that shares are of."""
    codes = {name: traits.codes[name] for name in sorted(traits.codes)}
    counts, groups = sequence_counts(packed, codes, traits.sizes(), counted)
    return {
        "indptr": counts.indptr.astype(np.int64),
        "indices": counts.indices,
        "data": counts.data,
        "groups": groups,
        "sequences": np.array(counts.shape),
    }


def runs_of(packed: PackedSequences, records: np.ndarray | None) -> dict[str, np.ndarray]:
    """The plan as a table, int64 (Q,): sequence, document (position among the accepted records), start, length.
    records: the record of each item of the stream; None if items are records."""
    sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
    return {
        "sequence": sequence,
        "document": packed.document if records is None else records[packed.document],
        "start": packed.start,
        "length": packed.length,
    }


def load_sequence_items(run: Run, traits: Traits) -> Items:
    """The sequences as items to order: tokens by the traits of `order.traits`, with their weights. If shares are of
    trained tokens, all tokens are balanced too: they decide what a batch costs and what its prompts are about."""
    from scipy.sparse import csr_matrix

    arrays: dict[str, Any] = run.arrays("packed_sequences", "rows")
    counts = csr_matrix(
        (arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(arrays["sequences"])
    )
    names = sorted(traits.codes)
    wanted = sequence_traits(run.settings.order.traits)
    columns = np.concatenate([np.flatnonzero(arrays["groups"] == names.index(name)) for name in wanted])
    sizes = [traits.sizes()[name] for name in wanted]
    if len(columns) < counts.shape[1] or (np.diff(columns) != 1).any():
        counts = counts[:, columns]
    items = Items(
        counts=counts,
        groups=np.repeat(np.arange(len(wanted), dtype=np.int32), sizes),
        weights=np.array([run.settings.order.traits[name] for name in wanted], np.float64),
    )
    if traits.trained is None:
        return items
    return with_all_tokens(
        items, load_packed(run), {name: traits.codes[name] for name in wanted}, traits.sizes()
    )


def sequence_traits(weights: dict[str, float]) -> list[str]:
    """The traits in the order of the sequences' groups: the cluster first, as for documents."""
    return sorted(weights, key=lambda trait: (trait != "cluster", trait))


def _no_token_lost(run: Run) -> Finding:
    stream, settings = load_stream(run), run.settings
    tokens = run.column("token_counts", "lengths")[stream.view.document_row]
    lengths, packed = tokens.astype("int64") + settings.packing.end_of_text, load_packed(run)
    but = f", but for those of {len(settings.order.cut):,} ids that are cut" if settings.order.cut else ""
    left = 0
    if but or leaves_out(settings):
        before = int(packed.length.sum())
        packed = _with_left_out(StreamPieces(run, stream), packed)
        left = int(packed.length.sum()) - before
    if leaves_out(settings) and left:
        but = f", but for {left:,} that are left out on purpose"
    covered = coverage(packed, lengths)
    figures = {name: getattr(covered, name) for name in ("tokens", "missing", "doubled", "outside")}
    if covered.exact:
        text = f"{covered.tokens:,} tokens of {len(lengths):,} documents, each in exactly one sequence{but}."
        return Finding(passed=True, text=text, figures=figures)
    first = covered.first
    where = "" if first is None else f"; the first document at fault is record {first:,} of the input"
    return Finding(
        passed=False,
        text=f"Of {covered.tokens:,} tokens, {covered.missing:,} are in no sequence and {covered.doubled:,} are in "
        f"a sequence more than once; {covered.outside:,} tokens of sequences are in no document{where}.",
        remedy=f"{remade(run, 'packed_sequences', 'plan')}; do not train on an output of this plan",
        figures=figures,
    )


def _with_left_out(documents: StreamPieces, packed: PackedSequences) -> PackedSequences:
    """The plan, followed by the tokens that are left out on purpose: of documents that are cut (`order.cut`), too long,
    or without a trained token in what was to be packed."""
    run, settings = documents.run, documents.run.settings
    consumed = packed.part(0, run.receipt("packed_sequences").facts["frozen_sequences"])
    items = np.arange(len(documents.lengths))
    pieces, whole = _pieces_to_pack(documents, items, consumed), documents.whole(items)
    columns = (
        [getattr(runs, name) for runs in (pieces, consumed)] for name in ("document", "start", "length")
    )
    left = remaining(whole, Pieces(*map(np.concatenate, columns)))
    meant = np.isin(items, documents.stream.items(find_records(run, settings.order.cut)))
    if leaves_out(settings):
        meant |= (documents.lengths > settings.sequence.length) | ~documents.are_trained(whole)
        meant[consumed.document] |= settings.masked
    left = left.take(meant[left.document])
    return join(packed, replace(consumed, **vars(left), indptr=np.array([0, len(left)])))


def _packed_sequences_settings(settings: Settings) -> dict[str, Any]:
    decides = {
        "packing": settings.packing.model_dump(mode="json"),
        "length": settings.sequence.length,
        "separate_copies": settings.copies_apart,
        "cut": settings.order.cut,
        "seed": settings.seed,
        **settings.counted_key,
        **({"train_on": settings.chats.train_on} if settings.masked else {}),
        **settings.curriculum_key,
    }
    if settings.packing.piece_tokens:
        # This stage orders pieces.
        decides["order"] = document_order_settings(settings)
    return decides


def _packed_sequences_reads(settings: Settings) -> tuple[str, ...]:
    return (
        *(
            "raw_docs",
            "token_counts",
            "traits",
            *stream_reads(settings),
            *(score_reads(settings) if settings.packing.piece_tokens else ()),
            "greedy_order",
        ),
        *(["frozen"] if settings.order.keeps else []),
        *(["ids"] if settings.order.cut and settings.input.id_field else []),
        *(space_reads(settings) if settings.packing.method == "related" else []),
    )


def _packed_sequences_inputs(run: Run) -> dict[str, str]:
    reads = [name for name in _packed_sequences_reads(run.settings) if name != "frozen"]
    return {**versions(run, *reads), **beginning_version(run)}


def _check_settings(run: Run) -> None:
    # A format that the first records decide is not known when the settings are loaded.
    if fault := run.settings.packing.fault(run.settings.forms):
        raise InputError(fault)


def _show_packed_sequences(run: Run, receipt: Receipt) -> Shown:
    if "left_out" not in receipt.files:
        return {}
    lines = left_out_lines(receipt.figures, run.settings.packing.too_long)
    return {
        "left_out": Text("\n".join(f"- {line}" for line in lines) or "nothing"),
        "left_out_records": Table(run.rows("packed_sequences", "left_out")),
    }


PACKED_SEQUENCES = WholeCorpus(
    name="packed_sequences",
    version=6,
    group="ordering",
    kinds={"numpy", "numba"},
    description="Which tokens make which training sequence: the ordered documents, packed to the sequence length.",
    reads=_packed_sequences_reads,
    settings=_packed_sequences_settings,
    inputs=_packed_sequences_inputs,
    content=("plan", "rows"),
    doing="packing sequences",
    check_settings=_check_settings,
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
