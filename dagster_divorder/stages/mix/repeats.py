"""repeats: how often each record is trained on (0, 1, 2, ... times), by the mix, the selection, and held-out documents.

`times` int32 (N,), by position among the accepted records; `packed` int32 (N,): how often sequences hold it, less often
than the curated output if documents of this one stay that the mix has no more room for. Later stages order, pack,
measure and write the stream: a view with an item for each time, the items of a record one after another. Without
`mixing.weights`, `selection.method` and held-out documents this stage does not exist, and the stream is the records.
If part of a value of `mixing.trait` is read once more than the rest, the part is spread evenly over its clusters and
lengths. It is drawn by the records' ids, so that appended or moved input hardly changes the times of other records.
Shares, epochs and `mixing.total_tokens` count the tokens in `Traits.counted`. Records that a trainer has read
(`order.frozen_tokens`) keep the times they were read; the rest of training has the shares that are asked, whatever
was read. `quotas` float64 (K, S): the tokens of each value in each phase that is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from dagster_divorder.core.distinct import copy_number
from dagster_divorder.core.measure.runs import ReadRuns, RunCounter
from dagster_divorder.core.mix.mixing import ODD, MixPlan, even_order, plan_mix, plan_phases, times_of
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.core.packing import PackedSequences, Pieces
from dagster_divorder.core.seeds import drawn
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Table, WholeCorpus
from dagster_divorder.stages.corpus.ids import find_records
from dagster_divorder.stages.mix.consumed import consumed_records, consumed_version
from dagster_divorder.stages.mix.heldout_copies import load_heldout
from dagster_divorder.stages.mix.subset_selection import load_selected
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from dagster_divorder.store.ids import distinct

MOST_EPOCHS = 10_000
"""Most epochs of one value: the stream has an item for each time that a record is trained on."""


@dataclass(frozen=True, slots=True)
class TrainingStream:
    """The M items that are trained on. record_of: position of each item's record among the accepted records, int64
    (M,), rising. traits: of the items."""

    record_of: np.ndarray
    traits: Traits

    def items(self, records: np.ndarray) -> np.ndarray:
        """The items of records, int64 rising."""
        return np.flatnonzero(np.isin(self.record_of, records))


def load_plan(run: Run) -> dict[str, np.ndarray]:
    """`times`, `packed` and `quotas`, as the module describes."""
    return run.arrays("repeats", "times")


def item_records(run: Run) -> np.ndarray:
    """The position of each item's record, int64 (M,)."""
    return items_of(load_plan(run)["times"]) if run.settings.repeats else np.arange(len(run.view))


def load_stream(run: Run) -> TrainingStream:
    """The stream that is ordered, packed and measured."""
    traits, records = load_traits(run), item_records(run)
    return TrainingStream(records, traits.take(records) if run.settings.repeats else traits)


def run_counter(run: Run, record_of: np.ndarray) -> RunCounter:
    """Counts the tokens of runs of items for shares. record_of: `TrainingStream.record_of`. Loads its data once, for
    many calls."""
    mask = load_loss_mask(run)

    def count(runs: Pieces | PackedSequences | ReadRuns) -> np.ndarray:
        return mask.within(record_of[runs.document], runs.start, runs.length)

    return count


def stream_size(run: Run) -> int:
    """The number of items of the stream."""
    return int(run.receipt("repeats").facts["items"]) if run.settings.repeats else len(run.view)


def items_of(times: np.ndarray) -> np.ndarray:
    """The record of each item, int64 (M,) rising. times: int (N,)."""
    return np.repeat(np.arange(len(times)), times)


def load_sources(run: Run) -> list[dict[str, Any]]:
    """One row per value of `mixing.trait`: its part of the stream, as in `curated_meta.json`. Unique: each record
    counts once."""
    return run.rows("repeats", "values")


def _plan_repeats(run: Run) -> Made:
    trait, traits = run.settings.mixed_trait, load_traits(run)
    # Reason -> the records that it keeps out of training, bool (N,), the first reason of a record first.
    barred = {"held out": load_heldout(run).removed} if run.settings.holds_out else {}
    if run.settings.selects:
        barred["not selected"] = ~load_selected(run)
    barred["cut"] = np.zeros(len(run.view), bool)
    barred["cut"][find_records(run, run.settings.order.cut)] = True
    training = np.flatnonzero(~np.logical_or.reduce([*barred.values()]))
    trained, names = traits.take(training), traits.names[trait]
    codes, tokens = trained.codes[trait], trained.counted
    read_before = consumed_records(run)
    lengths = np.maximum(traits.tokens + run.settings.packing.end_of_text, 1)
    of_records = (read_before.tokens * traits.counted / lengths)[training]
    read = np.rint(np.bincount(codes, of_records, len(names))).astype(np.int64)
    plan, quotas = _plan(run, names, np.bincount(codes, tokens, len(names)).astype(np.int64), read)
    # Unlike codes, hashes of names do not depend on the other values.
    values = [
        np.array([xxhash.xxh3_64_intdigest(of.encode()) for of in trained.names[name]], np.uint64)[
            trained.codes[name]
        ]
        for name in [trait, *sorted({*trained.codes} - {trait})]
    ]
    consumed = read_before.in_sequences[training]
    # A random number a record, from its document's id and the seed; records of equal text differ by their own ids.
    ids, number = run.index("id"), np.empty(len(run.copies), np.int64)
    by_id = np.lexsort([copy_number(distinct(ids).inverse), ids[:, 1], ids[:, 0], run.copies])
    number[by_id] = copy_number(run.copies[by_id])
    draws = drawn(run.index("text")[:, 0] + number.astype(np.uint64) * ODD, run.settings.seed, 2)
    order = even_order(values, draws[training])
    packed = np.zeros(len(traits.tokens), np.int32)
    packed[training] = times_of(plan, tokens, codes, order, consumed)
    # Documents that stay in the curated output need not be in a sequence.
    times = np.maximum(packed, read_before.times).astype(np.int32)

    def by_value(amounts: np.ndarray, codes: np.ndarray = codes) -> np.ndarray:
        return np.bincount(codes, amounts, len(names)).astype(np.int64)

    used, stream = packed[training] > 0, by_value(tokens * packed[training])
    columns = {
        "records": by_value(np.ones(len(packed)), traits.codes[trait]),
        "unique tokens": by_value(traits.counted, traits.codes[trait]),
        "records trained on": by_value(used),
        "unique tokens trained on": by_value(tokens * used),
        "tokens trained on": stream,
        "epochs": np.divide(stream, plan.sizes, out=np.zeros(len(names)), where=plan.sizes > 0),
        "share": stream / max(1, int(stream.sum())),
        "planned share": plan.shares,
    }
    rows = zip(names, *(of.tolist() for of in columns.values()), strict=True)
    files: dict[str, Any] = {
        "times": {"times": times, "packed": packed, "quotas": quotas},
        "values": [dict(zip(["value", *columns], row, strict=True)) for row in rows],
    }
    # Each record counts once, for the first reason.
    left_out, rest = {}, (packed == 0) & (read_before.in_sequences == 0)
    for reason, of_reason in barred.items():
        left_out[reason], rest = int((rest & of_reason).sum()), rest & ~of_reason
    items = int(times.sum(dtype=np.int64))
    figures = {
        "items": items,
        "left_out": {**left_out, "left out of the mix": int(rest.sum())},
        "most_repeats": int(times.max(initial=0)),
        "tokens_trained_on": int(stream.sum()),
        "unique_tokens_trained_on": int((tokens * used).sum()),
    }
    return Made(files, {"items": items}, figures)


def _plan(run: Run, names: Sequence[str], sizes: np.ndarray, read: np.ndarray) -> tuple[MixPlan, np.ndarray]:
    """(the plan for the values of `mixing.trait`, quotas). sizes, read: their tokens that may be trained on, and that
    were read, int64 (J,)."""
    mixing, values = run.settings.mixing, dict(zip(names, sizes.tolist(), strict=True))
    if not mixing.phase and mixing.total_tokens is None and mixing.weights in (None, "natural"):
        # Everything once, whatever was read.
        plan = plan_mix("natural", values, max_repeats=mixing.max_repeats)
        quotas = np.maximum(plan.tokens - read, 0.0)[:, np.newaxis]
    else:
        phases = [(of.until, of.weights) for of in mixing.phases]
        limits = {"total_tokens": mixing.total_tokens, "max_repeats": mixing.max_repeats}
        plan, quotas = plan_phases(phases, values, **limits, read=read)
    most = int(plan.epochs.argmax())
    if plan.epochs[most] > MOST_EPOCHS:
        raise InputError(
            f"mixing.weights takes {plan.epochs[most]:,.0f} epochs of {names[most]!r}, which has {sizes[most]:,} "
            f"tokens; expected at most {MOST_EPOCHS:,}: lower its share, or mixing.total_tokens"
        )
    return plan, quotas


REPEATS: WholeCorpus = WholeCorpus(
    name="repeats",
    version=5,
    description="How often each record is trained on in an epoch: by the mix, the selection, and the held-out "
    "documents.",
    reads=lambda settings: (
        *("raw_docs", "traits", "heldout", "heldout_copies", "subset_selection"),
        *(["ids"] if settings.order.cut else []),
    ),
    settings=("mixing", "heldout", "selection", "order", "seed"),
    decided_by=lambda run: {**REPEATS.usual(run), "consumed": consumed_version(run)},
    when=lambda settings: settings.repeats,
    doing="deciding how often each record is read",
    compute=_plan_repeats,
    show=lambda run, receipt: {"mix": Table(load_sources(run))},
)
