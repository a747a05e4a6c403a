"""Tells what stays of the last output: what a trainer has consumed of it (`order.frozen_tokens`), or under
`order.append = "extend"` all of it except a partial last sequence.

The stage `frozen` (stages/order/frozen.py) pins it. Stages that choose what is trained on must keep what is consumed,
but run before the stream exists: they use this module.

An output is extended if input, settings or a fit have changed since it was made. Otherwise its orders stay as they are,
behind the beginning that they were made with, so that a run with nothing new computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xxhash

from dagster_divorder.core.distinct import copy_number
from dagster_divorder.core.measure.packed import runs_in_order
from dagster_divorder.core.packing import FILLED
from dagster_divorder.errors import DamagedFileError, InputError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.reordered import Reordered, Unit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Fitted, load_fitted
from dagster_divorder.stages.corpus.raw_docs import record_index
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.ids import distinct, places, to_bytes
from dagster_divorder.store.state import Receipt, Result, load_receipt, load_result

DOCUMENTS, SEQUENCES = "frozen_documents.safetensors", "frozen_sequences.safetensors"
CHANGED = "the last output begins otherwise"
ORDERS = ("greedy_order", "packed_sequences", "sequence_order")
"""The stages that together decide what a trainer reads; each reads the one before."""
REMEDY = "or set order.frozen_tokens = 0 to order everything again"
WHOLE = 'or order everything again by one run with order.append = "whole" (DIVORDER_ORDER__APPEND=whole divorder run)'

Output = tuple[Receipt | Result, Receipt | Result, Receipt | Result]
"""Results of ORDERS; each was made from the one before."""
Items = tuple[np.ndarray, np.ndarray]
"""(record id of each item of a stream, uint64 (M, 2); its number among equal records, int64 (M,))."""


def remedy(run: Run) -> str:
    """How to give up what stays of the last output."""
    return WHOLE if run.settings.order.extends else REMEDY


def consumed_records(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(ids of the records that stay, uint64 (n, 2); how often each, int64 (n,)). Does not need the stream.

    Raises:
        InputError: as `freeze_prefix`.
    """
    if not run.settings.order.keeps:
        return np.empty((0, 2), np.uint64), np.zeros(0, np.int64)
    fitted = load_fitted(run.store, "frozen", run.graph["frozen"].key(run))
    files = fitted.files if fitted and not frozen_drift(run, fitted) else freeze_prefix(run)
    arrays = [unpack(files[name]) for name in (DOCUMENTS, SEQUENCES)]
    ids, copy = (np.concatenate([frozen[name] for frozen in arrays]) for name in ("id", "copy"))
    records = distinct(ids)
    times = np.zeros(len(records.first), np.int64)
    np.maximum.at(times, records.inverse, dense_copies(records.inverse, copy) + 1)
    return ids[records.first], times


def consumed_times(run: Run) -> np.ndarray:
    """How often a trainer has consumed each record (`order.frozen_tokens`), int64 (N,). Equal records share their
    number evenly."""
    ids, times = consumed_records(run)
    known = record_index(run, "id")
    consumed, place = np.zeros(len(known), np.int64), places(ids, known)
    consumed[place[place >= 0]] = times[place >= 0]
    row = run.view.record_row
    equal = np.bincount(row, minlength=len(known))
    return (consumed[row] + equal[row] - 1 - copy_number(row)) // equal[row]


def consumed_record_mask(run: Run) -> np.ndarray:
    """Which records a trainer has consumed, bool (N,): of equal records all or none."""
    row = run.view.record_row
    return (np.bincount(row, consumed_times(run)) > 0)[row]


def consumed_document_mask(run: Run) -> np.ndarray:
    """Which documents a trainer has consumed, bool (document_rows,)."""
    consumed = np.zeros(run.view.document_rows, bool)
    consumed[run.view.document_row[consumed_record_mask(run)]] = True
    return consumed


def consumed_version(run: Run) -> str:
    """A hash of the records that a trainer has consumed, "" without any."""
    ids, times = consumed_records(run)
    by_id = np.lexsort((ids[:, 1], ids[:, 0]))
    return xxhash.xxh3_128_hexdigest(to_bytes(ids[by_id]) + times[by_id].tobytes()) if len(ids) else ""


def frozen_drift(run: Run, fitted: Fitted) -> str | None:
    """Drift if the last output does not begin with the pinned rows, or is extended and has more. If the last run has no
    sequences yet, only its documents are compared."""
    if run.settings.order.extends:
        return _extension_drift(run, fitted)
    last = load_receipt(run.store, "greedy_order")
    documents, sequences = unpack(fitted.files[DOCUMENTS]), unpack(fitted.files[SEQUENCES])
    if last is None:
        return None
    order = unpack(run.store.read_verified(last.files["order"]))["order"][: len(documents["id"])]
    records = unpack(run.store.read_verified(last.files["records"]))["id"]
    if not np.array_equal(records[order], documents["id"]):
        return CHANGED
    try:
        output = last_output(run.store)
        prefix = sequences
        if output:
            prefix = _sequences(run, output, len(sequences["indptr"]) - 1, _items(run, output[0]))
    except DamagedFileError:
        # Later stages make the damaged file again, from the pin.
        return None
    same = all(np.array_equal(prefix[name], sequences[name]) for name in ("id", "start", "length", "indptr"))
    return None if same else CHANGED


def freeze_prefix(run: Run, wanted: int | None = None) -> Mapping[str, bytes]:
    """The documents and sequences of the last output's first `wanted` tokens. Documents are the ones that begin within
    as many tokens of the document order; if records are not packed, the ones in the sequences. The default is what the
    settings ask for: `order.frozen_tokens`, or the output that is extended.

    Raises:
        InputError: there is no output, it is shorter, or it was made with another tokenizer, sequence length or end of
            text.
    """
    if wanted is None and run.settings.order.extends:
        return run.memo.get("extended") or _extended_prefix(run)
    wanted = run.settings.order.frozen_tokens or 0 if wanted is None else wanted
    output = last_output(run.store)
    if output is None:
        ran = load_receipt(run.store, "raw_docs")
        why = "the last run did not finish" if ran else f"nothing has run on the store {run.store.place}"
        raise InputError(
            f"order.frozen_tokens is {wanted}, but {why}; expected the output that a trainer has consumed: run with "
            f"the settings of that output first, {REMEDY}"
        )
    last, packed, _ = output
    packs = packed.figures.get("method") != "none"
    # A trainer reads padded sequences; packed sequences may leave documents out.
    tokens = packed.facts["sequences"] * packed.facts["sequence_length"]
    if packs:
        tokens = max(tokens, last.facts["tokens"])
    if wanted > tokens:
        raise InputError(
            f"order.frozen_tokens is {wanted}, but the last output has only {tokens} tokens; expected the number of "
            f"consumed tokens: correct it, {REMEDY}"
        )
    if changed := _other_settings(run, packed):
        raise InputError(
            f"order.frozen_tokens is {wanted}, but the output was made with other settings ({changed}), "
            f"under which tokens are counted differently: restore these settings, {REMEDY}"
        )
    items = _items(run, last)
    sequences = _sequences(run, output, -(-wanted // run.settings.sequence.length), items)
    if not packs:
        return {DOCUMENTS: pack(_first_reads(sequences)), SEQUENCES: pack(sequences)}
    documents = _documents_in_order(run, last, items)
    # A record that is gone counts 0 tokens here; `load_frozen` refuses it.
    known = record_index(run, "id")
    row, tokens = places(documents["id"], known), np.zeros(len(known), np.int64)
    tokens[run.view.record_row] = run.column("token_counts", "lengths")[run.view.document_row]
    lengths = np.where(row < 0, 0, tokens[row])
    begins = np.cumsum(lengths) - lengths < wanted
    begun = {name: column[begins] for name, column in documents.items()}
    return {DOCUMENTS: pack(begun), SEQUENCES: pack(sequences)}


def _documents_in_order(run: Run, greedy_order: Receipt | Result, items: Items) -> dict[str, np.ndarray]:
    """`id` and `copy` of the items of a stream, in the order of documents."""
    order = unpack(run.store.read_verified(greedy_order.files["order"]))["order"]
    ids, copy = items
    return {"id": ids.take(order, axis=0), "copy": copy[order]}


def _items(run: Run, greedy_order: Receipt | Result) -> Items:
    """The items of an output's stream."""
    ids = unpack(run.store.read_verified(greedy_order.files["records"]))["id"]
    return ids, copy_number(distinct(ids).inverse)


def _other_settings(run: Run, packed: Receipt | Result) -> str:
    """What of the settings that decide tokens and sequences was other when the plan was made, in words; "" if
    nothing."""
    length, end_of_text = run.settings.sequence.length, run.settings.packing.end_of_text
    now = {"sequence.length": length, "packing.end_of_text": end_of_text}
    then = {
        "sequence.length": packed.facts["sequence_length"],
        "packing.end_of_text": packed.facts.get("end_of_text", end_of_text),
    }
    changed = [f"{name} was {then[name]}, is {now[name]}".lower() for name in now if then[name] != now[name]]
    if packed.facts["tokens_key"] != run.receipt("token_counts").key:
        changed.append("the base model was another")
    return "; ".join(changed)


def refuse_to_extend(run: Run) -> None:
    """
    Raises:
        InputError: the last output was made with another tokenizer, sequence length or end of text.
    """
    output = _written_output(run)
    if output and (changed := _other_settings(run, output[1])):
        raise InputError(
            f'order.append is "extend", and the last output was made with other settings ({changed}); its sequences '
            f"cannot go on under these: set them back, {WHOLE}"
        )


def _extension_drift(run: Run, fitted: Fitted) -> str | None:
    """Says if what is pinned is not what the orders were made with, or something has changed since and the last output
    has more."""
    # What is not pinned yet is what a fit of the same stage pins.
    wanted = run.memo["extended"] = _extended_prefix(run, fitted)
    return None if wanted == {name: fitted.files[name] for name in wanted} else "the last output has more"


def _extended_prefix(run: Run, fitted: Fitted | None = None) -> Mapping[str, bytes]:
    """What is to be pinned of the output that is extended. fitted: what is pinned.

    Raises:
        InputError: as `_written_output`.
    """
    output = _written_output(run)
    last = load_receipt(run.store, ORDERS[0])
    if output and last and output[0].key == last.key and _is_up_to_date(run):
        made_with = last.upstream.get("frozen")
        if fitted and made_with == fitted.result.version:
            return {name: fitted.files[name] for name in (DOCUMENTS, SEQUENCES)}
        output = output if made_with else None
    if output is None:
        nothing = {"id": np.empty((0, 2), np.uint64), "copy": np.zeros(0, np.int64)}
        runs = {
            "start": np.zeros(0, np.int64),
            "length": np.zeros(0, np.int64),
            "indptr": np.zeros(1, np.int64),
        }
        return {DOCUMENTS: pack(nothing), SEQUENCES: pack(nothing | runs)}
    count = max(
        full_sequences(output), -(-(run.settings.order.frozen_tokens or 0) // run.settings.sequence.length)
    )
    items = _items(run, output[0])
    sequences = _sequences(run, output, count, items)
    if output[1].figures.get("method") == "none":
        return {DOCUMENTS: pack(_first_reads(sequences)), SEQUENCES: pack(sequences)}
    return {DOCUMENTS: pack(_documents_in_order(run, output[0], items)), SEQUENCES: pack(sequences)}


def full_sequences(output: Output) -> int:
    """The sequences of an epoch of an output, without a last one that its packing could not fill."""
    packed = output[1]
    not_full = packed.figures.get("method") in FILLED and (
        packed.figures["last_sequence_tokens"] < packed.facts["sequence_length"]
    )
    return int(packed.facts["sequences"]) - bool(not_full)


def _written_output(run: Run) -> Output | None:
    """The orders of the last output that was written, None where none was.

    Raises:
        InputError: the store no longer has them.
    """
    stages = [stage for stage in ("exports", OUTPUT) if run.graph[stage].when(run.settings)]
    receipts = [receipt for stage in stages if (receipt := load_receipt(run.store, stage))]
    written = [keys for receipt in receipts if (keys := receipt.facts.get("orders"))]
    current = last_output(run.store)
    if current and dict(zip(ORDERS, (receipt.key for receipt in current), strict=True)) in written:
        return current
    for keys in written:
        order, packed, sequences = (load_result(run.store, stage, keys[stage]) for stage in ORDERS)
        if order and packed and sequences:
            return order, packed, sequences
    if receipts:
        raise InputError(
            f'order.append is "extend", and {run.store.place} no longer has the order of the last output, of which it '
            f"keeps the last few: put back the settings of that output and run, {WHOLE}"
        )
    return None


def _is_up_to_date(run: Run) -> bool:
    """Whether a run would make the orders as they are, behind the same beginning. A run asks this while it makes the
    stages before the orders; those behind the present one are taken to stay, unless a fit is to be made again."""
    if "now" in run.settings.refit.values():
        return False
    visited, waiting = set[str](), [(stage, "") for stage in ORDERS]
    while waiting:
        stage, version = waiting.pop()
        stored, wanted = load_receipt(run.store, stage), run.graph[stage]
        foreseen = run.foreseen.get(stage) if run.planning else None
        if (
            stored is None
            or version not in ("", (foreseen or stored).version)
            or stored.fingerprint != wanted.fingerprint(run.settings)
            or {*stored.upstream, "frozen"} != {*wanted.reads_under(run.settings), "frozen"}
        ):
            return False
        if stage not in visited:
            visited.add(stage)
            waiting += stored.upstream.items()
    return True


def keys_of_the_order(run: Run) -> dict[str, str]:
    """The keys of the current results of ORDERS, for a later `first_change`."""
    return {stage: run.receipt(stage).key for stage in ORDERS}


def first_change(run: Run, keys: Mapping[str, str], unit: Unit) -> tuple[int, int] | None:
    """(the first sequence of an earlier order that is not in the same place now, the number of sequences of that
    order). Both count the first epoch; for unit "record", records as they are first read. None if the store no longer
    has the earlier order. A partial last sequence of an extended output does not count: its tokens are packed again.
    keys: from `keys_of_the_order`."""
    before = [load_result(run.store, stage, keys[stage]) for stage in ORDERS]
    if any(result is None for result in before):
        return None
    orders, now = [result for result in before if result], [run.receipt(stage) for stage in ORDERS]
    try:
        then, rows = (_sequences(run, output, None, _items(run, output[0])) for output in (orders, now))
    except DamagedFileError:
        return None
    if unit == "record":
        return _equal(*(_first_reads(sequences)["id"] for sequences in (then, rows))), len(
            _first_reads(then)["id"]
        )
    count, then_facts, facts = len(then["indptr"]) - 1, orders[1].facts, now[1].facts
    if run.settings.order.extends:
        count = full_sequences((orders[0], orders[1], orders[2]))
    names = ("tokens_key", "sequence_length", "end_of_text")
    if any(then_facts.get(name, facts.get(name)) != facts.get(name) for name in names):
        return 0, count
    runs = min(_equal(then[name], rows[name]) for name in ("id", "start", "length"))
    ends = _equal(then["indptr"], rows["indptr"]) - 1
    return min(ends, int(np.searchsorted(then["indptr"], runs, side="right")) - 1), count


def _equal(one: np.ndarray, other: np.ndarray) -> int:
    """Number of equal rows at the beginning of two arrays."""
    rows = min(len(one), len(other))
    differ = (one[:rows] != other[:rows]).reshape(rows, -1).any(axis=1)
    return int(differ.argmax()) if differ.any() else rows


def _first_reads(sequences: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`id` and `copy` of the records in sequences, each copy once, in the order in which they are first read."""
    _, first = np.unique(np.c_[sequences["id"], sequences["copy"]], axis=0, return_index=True)
    return {name: sequences[name][np.sort(first)] for name in ("id", "copy")}


def reordered(
    run: Run, before: Receipt | None, places: Sequence[str], unit: Unit = "row"
) -> Reordered | None:
    """What a stage changes of the order of outputs in some places. before: the stage's receipt before. None if
    `order.frozen_tokens` is set, or every row (or record) keeps its place. Under `order.append = "extend"` rows change
    only if a run that ordered everything again was killed before it wrote all outputs."""
    if run.settings.order.frozen_tokens is not None or not places:
        return None
    keys = before.facts.get("orders") if before else None
    change = first_change(run, keys, unit) if keys else None
    if change is None:
        return Reordered(places, unit)
    return Reordered(places, unit, *change) if change[0] < change[1] else None


def last_change(run: Run, *, by_the_last_run: bool = False) -> Reordered | None:
    """What the run that wrote the present exports (or records in training order) changed of the order before. None if
    the settings say by now what stays. by_the_last_run: only if that was the last run."""
    if run.settings.order.says_what_stays:
        return None
    for stage in (OUTPUT, "exports"):
        receipt = load_receipt(run.store, stage) if run.graph[stage].when(run.settings) else None
        # The figures of a kept result come from the run that made it.
        if receipt and "reordered" in receipt.figures and (receipt.facts["computed"] or not by_the_last_run):
            return Reordered(**receipt.figures["reordered"])
    return None


def _sequences(
    run: Run, output: Sequence[Receipt | Result], count: int | None, items: Items
) -> dict[str, np.ndarray]:
    """The runs of an output's first `count` sequences, all if None, in order, with record ids and copies. items: of its
    stream."""
    _, packed, sequence_order = output
    ids, copy = items
    plan = unpack(run.store.read_verified(packed.files["plan"]))
    chosen = unpack(run.store.read_verified(sequence_order.files["order"]))["order"][0][:count]
    entries, indptr = runs_in_order(plan["indptr"], chosen)
    item = plan["document"][entries]
    return {
        "id": ids.take(item, axis=0),
        "copy": copy[item],
        "start": plan["start"][entries],
        "length": plan["length"][entries],
        "indptr": indptr,
    }


def last_output(store: Store) -> tuple[Receipt, Receipt, Receipt] | None:
    """The receipts of greedy_order, packed_sequences and sequence_order if each was made from the one before."""
    order, packed, sequences = (load_receipt(store, name) for name in ORDERS)
    if not (order and packed and sequences):
        return None
    made_from = (packed.upstream["greedy_order"], sequences.upstream["packed_sequences"])
    return (order, packed, sequences) if made_from == (order.version, packed.version) else None


def dense_copies(record: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """The copies of each record, renumbered from 0 without gaps, int64 (n,). record, copy: int (n,)."""
    order = np.lexsort([copy, record])
    begins = np.append(True, np.diff(record[order]) != 0)[: len(order)]
    rank = np.cumsum(begins | np.append(True, np.diff(copy[order]) != 0)[: len(order)])
    dense = np.empty(len(order), np.int64)
    dense[order] = rank - np.maximum.accumulate(np.where(begins, rank, 0))
    return dense
