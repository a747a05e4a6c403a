"""What a trainer has consumed of the last output, pinned so that it stays as it is: `order.frozen_tokens`.

Frozen are the documents that begin in the first N tokens of the last document order, and the first ceil(N / L)
sequences of the last sequence order (of its first epoch). The pin names records by their ids, since appended, moved and
deleted input changes every position. It belongs to N, the tokenizer, the sequence length, whether documents have an
end-of-text token, and the output it was taken from: where the last output does not begin with it (after a run with
another N, or none), the next run takes the beginning of the output there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dagster_divorder.core.distinct import copy_number
from dagster_divorder.core.measure.packed import runs_in_order
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.errors import DamagedFileError, InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Fitted, PinnedFit, Refit, load_fitted
from dagster_divorder.stages.corpus.raw_docs import record_index
from dagster_divorder.stages.mix.repeats import stream_reads, stream_view
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.ids import distinct, places, to_bytes
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.store.view import View

DOCUMENTS, SEQUENCES = "frozen_documents.safetensors", "frozen_sequences.safetensors"
ANOTHER = "the last output begins otherwise"
REMEDY = "or set order.frozen_tokens = 0 to order everything anew"


@dataclass(frozen=True, slots=True)
class Frozen:
    """documents int64 (F,): items of the stream, in their order; sequences: the consumed ones, in theirs."""

    documents: np.ndarray
    sequences: PackedSequences


def record_ids(run: Run, view: View) -> np.ndarray:
    """The id of every record of a view, uint64 (N, 2): what a later run finds the records of an order by."""
    return record_index(run, "id")[view.record_row]


def load_frozen(run: Run) -> Frozen | None:
    """The consumed beginning, None if `order.frozen_tokens` is 0.

    Raises:
        InputError: records of the beginning are no longer in the input.
    """
    if not run.settings.order.frozen_tokens:
        return None
    files = run.fit("frozen")
    documents, sequences = unpack(files[DOCUMENTS]), unpack(files[SEQUENCES])
    ids, copy = (np.concatenate([documents[name], sequences[name]]) for name in ("id", "copy"))
    found, document = np.split(_locate(run, ids, copy), [len(documents["id"])])
    runs = PackedSequences(
        document=document,
        start=sequences["start"],
        length=sequences["length"],
        indptr=sequences["indptr"],
        sequence_length=run.settings.sequence.length,
    )
    for positions, ids in ((found, documents["id"]), (runs.document, sequences["id"])):
        lost = np.flatnonzero(positions < 0)
        if lost.size:
            raise InputError(
                f"{lost.size} of the {len(ids)} consumed records are no longer in the input (the first has the id "
                f"{to_bytes(ids[lost[:1]]).hex()}); expected all of them: restore them, {REMEDY}"
            )
    return Frozen(found, runs)


def _frozen_drift(run: Run, fitted: Fitted) -> str | None:
    """The last output does not begin with what is pinned; its documents alone decide where a run ended before its
    sequences."""
    last = load_receipt(run.store, "greedy_order")
    documents, sequences = unpack(fitted.files[DOCUMENTS]), unpack(fitted.files[SEQUENCES])
    if last is None:
        return None
    order = unpack(run.store.read_verified(last.files["order"]))["order"][: len(documents["id"])]
    records = unpack(run.store.read_verified(last.files["records"]))["id"]
    if not np.array_equal(records[order], documents["id"]):
        return ANOTHER
    try:
        output = _last_output(run)
        found = _sequences(run, output, len(sequences["indptr"]) - 1) if output else sequences
    except DamagedFileError:
        # The stages after this one make it again, from the pin.
        return None
    same = all(np.array_equal(found[name], sequences[name]) for name in ("id", "start", "length", "indptr"))
    return None if same else ANOTHER


def consumed_records(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(ids of the records that a trainer has consumed, by `order.frozen_tokens`, uint64 (n, 2); how many times of each,
    int64 (n,)). Told without the stream, which is made so that it holds them.

    Raises:
        InputError: as the stage does.
    """
    if not run.settings.order.frozen_tokens:
        return np.empty((0, 2), np.uint64), np.zeros(0, np.int64)
    fitted = load_fitted(run.store, FROZEN.name, FROZEN.key(run))
    files = fitted.files if fitted and not _frozen_drift(run, fitted) else _freeze_prefix(run)
    arrays = [unpack(files[name]) for name in (DOCUMENTS, SEQUENCES)]
    ids, copy = (np.concatenate([of[name] for of in arrays]) for name in ("id", "copy"))
    of_id = distinct(ids)
    times = np.zeros(len(of_id.first), np.int64)
    np.maximum.at(times, of_id.inverse, _dense(of_id.inverse, copy) + 1)
    return ids[of_id.first], times


def _dense(record: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """The copies of each record numbered by their rank, without gaps; int64 (n,). record, copy: int (n,)."""
    order = np.lexsort([copy, record])
    another = np.append(True, np.diff(record[order]) != 0)[: len(order)]
    rank = np.cumsum(another | np.append(True, np.diff(copy[order]) != 0)[: len(order)])
    dense = np.empty(len(order), np.int64)
    dense[order] = rank - np.maximum.accumulate(np.where(another, rank, 0))
    return dense


def _last_output(run: Run) -> tuple[Receipt, Receipt, Receipt] | None:
    """greedy_order, packed_sequences and sequence_order if each was made from the one before, else None."""
    order, packed, sequences = (
        load_receipt(run.store, name) for name in ("greedy_order", "packed_sequences", "sequence_order")
    )
    if not (order and packed and sequences):
        return None
    made_from = (packed.upstream["greedy_order"], sequences.upstream["packed_sequences"])
    return (order, packed, sequences) if made_from == (order.version, packed.version) else None


def _freeze_prefix(run: Run) -> Mapping[str, bytes]:
    """Documents and sequences of the last output up to `order.frozen_tokens`.

    Raises:
        InputError: there is no output to begin with, it is shorter, or was made with another tokenizer, sequence length
        or end of text.
    """
    wanted = run.settings.order.frozen_tokens
    output = _last_output(run)
    if output is None:
        raise InputError(
            f"order.frozen_tokens is {wanted}, but the last run did not come to its end; expected an output that a "
            f"trainer has consumed: run with the settings of that output first, {REMEDY}"
        )
    last, packed, _ = output
    if wanted > last.facts["tokens"]:
        raise InputError(
            f"order.frozen_tokens is {wanted}; the last output has {last.facts['tokens']} tokens, and no more can "
            f"have been consumed: give their number, {REMEDY}"
        )
    length, end_of_text = run.settings.sequence.length, run.settings.packing.end_of_text
    now = {"sequence.length": length, "packing.end_of_text": end_of_text}
    then = {
        "sequence.length": packed.facts["sequence_length"],
        "packing.end_of_text": packed.facts.get("end_of_text", end_of_text),
    }
    changed = [f"{name} was {then[name]}, is {now[name]}".lower() for name in now if then[name] != now[name]]
    if packed.facts["tokens_key"] != run.receipt("token_counts").key:
        changed.append("the base model was another one")
    if changed:
        raise InputError(
            f"order.frozen_tokens is {wanted}, of an output made with other settings ({'; '.join(changed)}); tokens "
            f"consumed under one cannot be counted under another: set them back, {REMEDY}"
        )
    ids = unpack(run.store.read_verified(last.files["records"]))["id"]
    copy = copy_number(distinct(ids).inverse)
    order = unpack(run.store.read_verified(last.files["order"]))["order"]
    # A record that is gone counts no token here; `load_frozen` refuses it.
    known = record_index(run, "id")
    row, tokens = places(ids[order], known), np.zeros(len(known), np.int64)
    tokens[run.view.record_row] = run.column("token_counts", "lengths")[run.view.document_row]
    lengths = np.where(row < 0, 0, tokens[row])
    documents = order[np.cumsum(lengths) - lengths < wanted]
    return {
        DOCUMENTS: pack({"id": ids[documents], "copy": copy[documents]}),
        SEQUENCES: pack(_sequences(run, output, -(-wanted // length))),
    }


def _sequences(run: Run, output: tuple[Receipt, Receipt, Receipt], count: int) -> dict[str, np.ndarray]:
    """The first `count` sequences in the order of an output: their runs, by record id and copy."""
    last, packed, sequence_order = output
    ids = unpack(run.store.read_verified(last.files["records"]))["id"]
    plan = unpack(run.store.read_verified(packed.files["plan"]))
    chosen = unpack(run.store.read_verified(sequence_order.files["order"]))["order"][0][:count]
    entries, indptr = runs_in_order(plan["indptr"], chosen)
    of = plan["document"][entries]
    return {
        "id": ids[of],
        "copy": copy_number(distinct(ids).inverse)[of],
        "start": plan["start"][entries],
        "length": plan["length"][entries],
        "indptr": indptr,
    }


def _locate(run: Run, ids: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """Item of the stream that is each record, given by id and which copy of it is meant; int64 (n,), -1 if it is
    gone. Of a record that stands less often than it did, the copies that are left are meant."""
    row, view = places(ids, record_index(run, "id")), stream_view(run)
    by_row = np.argsort(view.record_row, kind="stable")
    first = np.searchsorted(view.record_row[by_row], row)
    last = np.searchsorted(view.record_row[by_row], row, side="right")
    record = distinct(ids).inverse
    fewer = np.bincount(record, copy >= last - first) > 0
    copy = np.where(fewer[record], _dense(record, copy), copy)
    there = (row >= 0) & (first + copy < last)
    return np.where(there, by_row[np.where(there, first + copy, 0)], -1)


FROZEN = PinnedFit(
    name="frozen",
    version=1,
    asset=False,
    description="What a trainer has consumed of the last output.",
    reads=lambda settings: ("raw_docs", "token_counts", *stream_reads(settings)),
    settings=lambda settings: {
        "tokens": settings.order.frozen_tokens,
        "length": settings.sequence.length,
        **({"end_of_text": True} if settings.packing.end_of_text else {}),
    },
    inputs=lambda run: {"tokens": run.receipt("token_counts").key},
    doing="keeping the beginning of the last output",
    compute=_freeze_prefix,
    # It follows the last output, and nobody asks for another beginning.
    refit=lambda settings: Refit("auto", ""),
    drift=_frozen_drift,
    checked_once_per_corpus=False,
)
