"""Tells what stays of the published plan: what a trainer has consumed of it (`order.frozen_tokens`), or under
`order.append = "extend"` all of it except a partial last sequence.

The stage `frozen` (stages/order/frozen.py) pins it. Stages that choose what is trained on must keep what is consumed,
but run before the stream exists: they use this module.

A plan is extended if input, settings or a fit have changed since it was made. Otherwise its orders stay as they are,
behind the beginning that they were made with, so that a run with nothing new computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import xxhash

from dagster_divorder.core.distinct import copy_number
from dagster_divorder.core.measure.runs import runs_in_order
from dagster_divorder.core.packing import FILLED
from dagster_divorder.errors import DamagedFileError, InputError
from dagster_divorder.pipeline.fit import Fitted, load_fitted
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.published import (
    ORDERS,
    SAY_WHAT_WAS_READ,
    in_training_order,
    name_of,
    plan_that_stays,
    plans_in_place,
)
from dagster_divorder.pipeline.run import Run
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.ids import distinct, places, to_bytes
from dagster_divorder.store.state import Receipt, Result, TrainingPlan, load_receipt

DOCUMENTS, SEQUENCES = "frozen_documents.safetensors", "frozen_sequences.safetensors"
REMEDY = "or set order.frozen_tokens = 0 to order everything again"
ANEW = "DIVORDER_ORDER__APPEND=whole DIVORDER_ORDER__FROZEN_TOKENS=0 divorder run"
WHOLE = f'or order everything again by one run with order.append = "whole" ({ANEW})'

Orders = Mapping[str, Receipt | Result]
"""Results of ORDERS; each was made from the one before."""
Items = tuple[np.ndarray, np.ndarray]
"""(record id of each item of a stream, uint64 (M, 2); its number among equal records, int64 (M,))."""


def remedy(run: Run) -> str:
    """How to give up what stays of the last output."""
    return WHOLE if run.settings.order.extends else REMEDY


class ConsumedRecords(NamedTuple):
    """Records that stay: how often each, among the documents or in sequences, and in sequences alone, int64 (n,); its
    tokens that sequences hold, (n,). Of n different ids, or of the N records: then equal ones share their numbers
    evenly."""

    times: np.ndarray
    in_sequences: np.ndarray
    tokens: np.ndarray


def _consumed_ids(run: Run) -> tuple[np.ndarray, ConsumedRecords]:
    """(ids of the records that stay, uint64 (n, 2); what stays of them). Does not need the stream."""
    if not run.settings.order.keeps:
        return np.empty((0, 2), np.uint64), ConsumedRecords(*(np.zeros(0, np.int64) for _ in range(3)))
    fitted = load_fitted(run.store, "frozen", run.graph["frozen"].key(run))
    files = fitted.files if fitted and not frozen_drift(run, fitted) else freeze_prefix(run)
    documents, sequences = (unpack(files[name]) for name in (DOCUMENTS, SEQUENCES))
    ids, copy = (np.concatenate([documents[name], sequences[name]]) for name in ("id", "copy"))
    records = distinct(ids)

    def most_times(part: slice) -> np.ndarray:
        of, times = records.inverse[part], np.zeros(len(records.first), np.int64)
        np.maximum.at(times, of, dense_copies(of, copy[part]) + 1)
        return times

    runs = slice(len(documents["id"]), None)
    tokens = np.bincount(records.inverse[runs], sequences["length"], len(records.first)).astype(np.int64)
    return ids[records.first], ConsumedRecords(most_times(slice(None)), most_times(runs), tokens)


def consumed_records(run: Run) -> ConsumedRecords:
    """What stays of each record."""
    ids, consumed = _consumed_ids(run)
    known, row = distinct_records(run)
    place, equal = places(ids, known), np.bincount(row, minlength=len(known))[row]
    of_known = np.zeros((3, len(known)), np.int64)
    of_known[:, place[place >= 0]] = np.stack(consumed)[:, place >= 0]
    times, in_sequences, tokens = of_known[:, row]
    before = equal - 1 - copy_number(row)
    return ConsumedRecords((times + before) // equal, (in_sequences + before) // equal, tokens / equal)


def distinct_records(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """(the distinct record ids, uint64 (D, 2); the one of each record, int64 (N,))."""
    ids = run.index("id")
    once = distinct(ids)
    return ids[once.first], once.inverse


def consumed_record_mask(run: Run) -> np.ndarray:
    """Which records a trainer has consumed, bool (N,): of equal records all or none."""
    _, row = distinct_records(run)
    return (np.bincount(row, consumed_records(run).times) > 0)[row]


def consumed_text_mask(run: Run) -> np.ndarray:
    """Which records have a text that a trainer has consumed, bool (N,)."""
    return np.isin(run.copies, run.copies[consumed_record_mask(run)])


def consumed_version(run: Run) -> str:
    """A hash of the records that a trainer has consumed, "" without any."""
    ids, counts = _consumed_ids(run)
    by_id = np.lexsort((ids[:, 1], ids[:, 0]))
    read = b"".join(count[by_id].tobytes() for count in counts)
    return xxhash.xxh3_128_hexdigest(to_bytes(ids[by_id]) + read) if len(ids) else ""


def frozen_drift(run: Run, fitted: Fitted) -> str | None:
    """Drift if the published plan does not begin with the pinned rows, or is extended and has more."""
    if run.settings.order.extends:
        # What is not pinned yet is what a fit of the same stage pins.
        wanted = run.memo["extended"] = _extended_prefix(run, fitted)
        return None if wanted == {name: fitted.files[name] for name in wanted} else "the plan has more"
    plan = plan_that_stays(run)
    if plan is None:
        return None
    documents, sequences = unpack(fitted.files[DOCUMENTS]), unpack(fitted.files[SEQUENCES])
    try:
        items = plan_items(run, plan.orders)
        prefix = _sequences(run, plan.orders, len(sequences["indptr"]) - 1, items)
        begun = _documents_in_order(run, plan.orders, items) if _packs(plan.orders) else documents
    except DamagedFileError:
        # The pin is whole.
        return None
    same = all(np.array_equal(prefix[name], sequences[name]) for name in ("id", "start", "length", "indptr"))
    same &= np.array_equal(begun["id"][: len(documents["id"])], documents["id"])
    return None if same else "the published plan begins otherwise"


def freeze_prefix(
    run: Run, wanted: int | None = None, plan: TrainingPlan | None = None
) -> Mapping[str, bytes]:
    """The documents and sequences of a plan's first `wanted` tokens. Documents are the ones that begin within as many
    tokens of the document order; if records are not packed, the ones in the sequences. The default is what the settings
    ask for: `order.frozen_tokens` of the published plan, or the plan that is extended.

    Raises:
        InputError: there is no plan, it is shorter, or it was made with another tokenizer, sequence length or end of
            text.
    """
    if wanted is None and run.settings.order.extends:
        return run.memo.get("extended") or _extended_prefix(run)
    wanted = run.settings.order.frozen_tokens or 0 if wanted is None else wanted
    plan = plan or plan_that_stays(run)
    if plan is None:
        raise InputError(
            f"order.frozen_tokens is {wanted}, but no plan was published in {run.store.place}; expected a finished "
            f"run, whose output a trainer has consumed: run with the settings of that output first, {REMEDY}"
        )
    orders, packed = plan.orders, plan.orders["packed_sequences"]
    # A trainer reads padded sequences; packed sequences may leave documents out.
    tokens = packed.facts["sequences"] * packed.facts["sequence_length"]
    if _packs(orders):
        tokens = max(tokens, orders["greedy_order"].facts["tokens"])
    if wanted > tokens:
        raise InputError(
            f"order.frozen_tokens is {wanted}, but plan {plan.fingerprint} has only {tokens} tokens; expected the "
            f"number of consumed tokens: correct it, {REMEDY}"
        )
    if changed := _other_settings(run, packed):
        raise InputError(
            f"order.frozen_tokens is {wanted}, but plan {plan.fingerprint} was made with other settings "
            f"({changed}), under which tokens are counted differently: restore these settings, {REMEDY}"
        )
    return _beginning(run, orders, -(-wanted // run.settings.sequence.length), wanted)


def _beginning(run: Run, orders: Orders, count: int, wanted: int | None = None) -> Mapping[str, bytes]:
    """The first `count` sequences of a plan, and its documents; only those that begin within `wanted` tokens."""
    items = plan_items(run, orders)
    sequences = _sequences(run, orders, count, items)
    if not _packs(orders):
        # The records in sequences, each copy once, in the order in which they are first read.
        _, first = np.unique(np.c_[sequences["id"], sequences["copy"]], axis=0, return_index=True)
        documents = {name: sequences[name][np.sort(first)] for name in ("id", "copy")}
        begins = sequences["indptr"][sequences["stretches"]]
        documents["stretches"] = np.searchsorted(np.sort(first), begins)
        return {DOCUMENTS: pack(documents), SEQUENCES: pack(sequences)}
    documents = _documents_in_order(run, orders, items)
    if wanted is not None:
        # A record that is gone counts 0 tokens here; `load_frozen` refuses it.
        row = places(documents["id"], run.index("id"))
        lengths = np.where(row < 0, 0, run.column("token_counts", "lengths")[row])
        begins = np.cumsum(lengths) - lengths < wanted
        stretches = np.unique(np.minimum(documents["stretches"], begins.sum()))
        documents = {name: documents[name][begins] for name in ("id", "copy")} | {"stretches": stretches}
    return {DOCUMENTS: pack(documents), SEQUENCES: pack(sequences)}


def _documents_in_order(run: Run, orders: Orders, items: Items) -> dict[str, np.ndarray]:
    """`id` and `copy` of the items of a stream, in the order of documents; `stretches` int64 (T + 1,), where stretches
    of it begin and end."""
    made = unpack(run.store.read_verified(orders["greedy_order"].files["order"]))
    ids, copy = items
    order = made["order"]
    return {"id": ids.take(order, axis=0), "copy": copy[order], "stretches": made["stretches"]}


def plan_items(run: Run, orders: Orders) -> Items:
    """The items of a plan's stream."""
    ids = unpack(run.store.read_verified(orders["greedy_order"].files["records"]))["id"]
    return ids, copy_number(distinct(ids).inverse)


def _packs(orders: Orders) -> bool:
    return bool(orders["packed_sequences"].figures.get("method") != "none")


def _other_settings(run: Run, packed: Receipt | Result) -> str:
    """What of the settings that decide tokens and sequences was other when the plan was made, in words; "" if
    nothing."""
    changed = []
    for key, name, now in (
        ("sequence_length", "sequence.length", run.settings.sequence.length),
        ("end_of_text", "packing.end_of_text", run.settings.packing.end_of_text),
    ):
        if (then := packed.facts.get(key, now)) != now:
            changed.append(f"{name} was {then}, is {now}".lower())
    if packed.facts["tokens_key"] != run.receipt("token_counts").key:
        changed.append("the base model was another")
    return "; ".join(changed)


def refuse_to_extend(run: Run) -> None:
    """
    Raises:
        InputError: the last output was made with another tokenizer, sequence length or end of text.
    """
    plan = plan_that_stays(run)
    if plan and (changed := _other_settings(run, plan.orders["packed_sequences"])):
        raise InputError(
            f'order.append is "extend", and the last output was made with other settings ({changed}); its sequences '
            f"cannot go on under these: set them back, {WHOLE}"
        )


def _extended_prefix(run: Run, fitted: Fitted | None = None) -> Mapping[str, bytes]:
    """What is to be pinned of the plan that is extended. fitted: what is pinned."""
    plan, last = plan_that_stays(run), load_receipt(run.store, ORDERS[0])
    orders: Orders | None = plan.orders if plan else None
    if orders is None and load_receipt(run.store, OUTPUT):
        raise InputError(
            f'order.append is "extend", and {run.store.place} does not have the plan of the last output: put back the '
            f"settings and the input of that output, delete its manifests and run, {WHOLE}"
        )
    if orders and last and orders[ORDERS[0]].key == last.key and _is_up_to_date(run):
        made_with = last.upstream.get("frozen")
        if fitted and made_with == fitted.result.version:
            return {name: fitted.files[name] for name in (DOCUMENTS, SEQUENCES)}
        orders = orders if made_with else None
    if orders is None:
        none, begin = np.zeros(0, np.int64), np.zeros(1, np.int64)
        nothing = {"id": np.empty((0, 2), np.uint64), "copy": none, "stretches": begin}
        runs = {"start": none, "length": none, "indptr": begin}
        return {DOCUMENTS: pack(nothing), SEQUENCES: pack(nothing | runs)}
    return _beginning(run, orders, _sequences_that_stay(run, orders))


def _sequences_that_stay(run: Run, orders: Orders) -> int:
    """The sequences of an epoch of a plan that stay under these settings: what a trainer has consumed; of a plan that
    is extended, all but a last one that its packing could not fill."""
    consumed = -(-(run.settings.order.frozen_tokens or 0) // run.settings.sequence.length)
    return max(consumed, full_sequences(orders)) if run.settings.order.extends else consumed


def full_sequences(orders: Orders) -> int:
    """The sequences of an epoch of a plan, without a last one that its packing could not fill."""
    facts, figures = orders["packed_sequences"].facts, orders["packed_sequences"].figures
    filled = figures.get("method") in FILLED
    return int(facts["sequences"]) - (filled and figures["last_sequence_tokens"] < facts["sequence_length"])


def refuse_other_plans(run: Run) -> None:
    """
    Raises:
        InputError: an export, which the run would replace, does not begin with what stays; or nothing is there to stay.
    """
    plan = plan_that_stays(run)
    if plan is None:
        if not run.settings.order.extends and load_receipt(run.store, "frozen") is None:
            freeze_prefix(run)
        return
    for place, other in plans_in_place(run).items():
        if other == plan:
            continue
        change = first_change(run, other.orders, plan.orders) if other else None
        if not (other and change) or change[0] < _sequences_that_stay(run, other.orders):
            raise InputError(
                f"{place} holds {name_of(other)}, which does not begin with what stays of plan {plan.fingerprint} "
                f"(order.frozen_tokens, order.append), and a run would replace it: if a trainer has read it, `divorder "
                f"freeze --step N --plan {place}`; if none has, delete it (an export with its neighbour), {remedy(run)}"
            )


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
            or {*stored.upstream, "frozen"} != {*run.graph.reads(stage, run.settings), "frozen"}
        ):
            return False
        if stage not in visited:
            visited.add(stage)
            waiting += stored.upstream.items()
    return True


def first_change(run: Run, then: Orders, now: Orders) -> tuple[int, int] | None:
    """(the first sequence of an earlier plan that is not in the same place in a later one, the number of its
    sequences). Both count the first epoch. None if a file is damaged. A partial last sequence of an extended plan does
    not count: its tokens are packed again."""
    try:
        before, rows = (_sequences(run, orders, None, plan_items(run, orders)) for orders in (then, now))
    except DamagedFileError:
        return None
    count = full_sequences(then) if run.settings.order.extends else len(before["indptr"]) - 1
    then_facts, facts = (orders["packed_sequences"].facts for orders in (then, now))
    names = ("tokens_key", "sequence_length", "end_of_text")
    if any(then_facts.get(name, facts.get(name)) != facts.get(name) for name in names):
        return 0, count
    runs = min(_equal(before[name], rows[name]) for name in ("id", "start", "length"))
    ends = _equal(before["indptr"], rows["indptr"]) - 1
    return min(ends, int(np.searchsorted(before["indptr"], runs, side="right")) - 1), count


def _equal(one: np.ndarray, other: np.ndarray) -> int:
    """Number of equal rows at the beginning of two arrays."""
    rows = min(len(one), len(other))
    differ = (one[:rows] != other[:rows]).reshape(rows, -1).any(axis=1)
    return int(differ.argmax()) if differ.any() else rows


def refuse_to_reorder(run: Run, fingerprint: str) -> None:
    """Protects outputs that a trainer may have read from a plan of this fingerprint. A first run is not refused, and
    neither is one that keeps every row in its place.

    Raises:
        InputError: an output holds another plan, whose order would change, and `order.frozen_tokens` is unset.
    """
    if run.settings.order.frozen_tokens is not None:
        return
    ordered, present = {str(place) for place, _ in in_training_order(run.settings)}, plans_in_place(run)
    others = {place: plan for place, plan in present.items() if place in ordered}
    others = {place: plan for place, plan in others.items() if not plan or plan.fingerprint != fingerprint}
    if not others:
        return
    plan, *rest = others.values()
    change = None
    if plan and all(other == plan for other in rest):
        change = first_change(run, plan.orders, {stage: run.receipt(stage) for stage in ORDERS})
    if change and change[0] == change[1]:
        return
    begins = f"from row {change[0]:,} of {change[1]:,} on" if change else "perhaps from the first row on"
    raise InputError(
        f"order.frozen_tokens is unset, and {' and '.join(others)} would change {begins}, so nothing was "
        f"written there: {SAY_WHAT_WAS_READ}; then run again"
    )


def _sequences(run: Run, orders: Orders, count: int | None, items: Items) -> dict[str, np.ndarray]:
    """The runs of a plan's first `count` sequences, all if None, in order, with record ids and copies, and the bounds
    of their stretches. items: of its stream."""
    ids, copy = items
    plan = unpack(run.store.read_verified(orders["packed_sequences"].files["plan"]))
    order = unpack(run.store.read_verified(orders["sequence_order"].files["order"]))["order"]
    entries, indptr = runs_in_order(plan["indptr"], order[0][:count])
    item = plan["document"][entries]
    stretch = np.searchsorted(plan["stretches"], order[0][:count], side="right")
    changes = np.flatnonzero(np.diff(stretch, prepend=0))
    return {
        "stretches": np.append(changes, len(stretch)),
        "id": ids.take(item, axis=0),
        "copy": copy[item],
        "start": plan["start"][entries],
        "length": plan["length"][entries],
        "indptr": indptr,
    }


def dense_copies(record: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """The copies of each record, renumbered from 0 without gaps, int64 (n,). record, copy: int (n,)."""
    width = int(copy.max(initial=0)) + 1
    pairs, at = np.unique(record * width + copy, return_inverse=True)
    return copy_number(pairs // width)[at]
