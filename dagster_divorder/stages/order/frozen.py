"""frozen: pins the beginning of the published plan that stays (`pipeline.published`): what a trainer has consumed
(`order.frozen_tokens`), or under `order.append = "extend"` all of it.

It has the documents that begin in the first N tokens of the plan's document order, and the first ceil(N / L) sequences
of its sequence order (of its first epoch). The pin names records by their ids, because appended, moved or deleted input
changes every position. It depends on N, the tokenizer, the sequence length, the end-of-text token and the plan. If the
published plan does not begin with it (after a run with another N, or none), the next run pins the beginning of that
plan.

Under `extend` it has all documents and sequences of the plan, except a partial last sequence (`concat`,
`cluster_packed`): the tokens of this one are packed again with those of new documents, so every full row stays. It is
pinned again as soon as input, settings or fits differ from those of the plan. It is empty until a plan was published.

No run replaces an export that does not begin with what stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.mix.consumed import (
    DOCUMENTS,
    SEQUENCES,
    dense_copies,
    distinct_records,
    freeze_prefix,
    frozen_drift,
    refuse_other_plans,
    refuse_to_extend,
    remedy,
)
from dagster_divorder.stages.mix.repeats import item_records
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.ids import distinct, places, to_bytes


@dataclass(frozen=True, slots=True)
class Frozen:
    """documents: int64 (F,), the consumed items of the stream, in order. sequences: the consumed sequences.
    document_stretches, stretches: int64 (T + 1,), where stretches of one mix begin and end in both."""

    documents: np.ndarray
    sequences: PackedSequences
    document_stretches: np.ndarray
    stretches: np.ndarray


def load_frozen(run: Run) -> Frozen | None:
    """The beginning that stays; None if nothing does.

    Raises:
        InputError: records of the beginning are no longer in the input, or the output to extend has another tokenizer
            or sequence length.
    """
    if not stays(run):
        return None
    if run.settings.order.extends:
        refuse_to_extend(run)
    files = run.fit("frozen")
    documents, sequences = unpack(files[DOCUMENTS]), unpack(files[SEQUENCES])
    ids, copy = (np.concatenate([documents[name], sequences[name]]) for name in ("id", "copy"))
    items = np.split(locate(run, ids, copy), [len(documents["id"])])
    extended = 'records of the last output, which order.append = "extend" keeps,'
    which = extended if run.settings.order.extends else "consumed records"
    for positions, ids in zip(items, (documents["id"], sequences["id"]), strict=True):
        lost = ids[positions < 0]
        if len(lost):
            missing, restore = "are no longer in the input", "restore them"
            if (places(lost, distinct_records(run)[0]) >= 0).all():
                missing = "are there less often than they were read"
                restore = 'restore the others, or set mixing.weights = "natural" if a mix repeated them'
            raise InputError(
                f"{len(lost)} of the {len(ids)} {which} {missing} (the first has the id "
                f"{to_bytes(lost[:1]).hex()}); expected all of them: {restore}, {remedy(run)}"
            )
    runs = PackedSequences(
        document=items[1],
        start=sequences["start"],
        length=sequences["length"],
        indptr=sequences["indptr"],
        sequence_length=run.settings.sequence.length,
    )
    return Frozen(items[0], runs, documents["stretches"], sequences["stretches"])


def stays(run: Run) -> bool:
    """Whether something of the published plan stays."""
    return run.settings.order.keeps and bool(run.receipt("frozen").facts.get("stays", 1))


def behind_beginning(run: Run, stage: str) -> dict[str, Any]:
    """What decides a stage that orders or packs behind the beginning; if nothing stays, as without the setting."""
    decided = run.graph[stage].usual(run)
    return decided if stays(run) else {name: decided[name] for name in decided if name != "frozen"}


def locate(run: Run, ids: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """The item of the stream for each record id and number of its copy, int64 (n,), -1 if it is gone. If a record has
    fewer copies than before, the first ones are taken."""
    known, of_records = distinct_records(run)
    of_items = of_records[item_records(run)]
    row, by_row = places(ids, known), np.argsort(of_items, kind="stable")
    # The last entry, 0, is of row -1: records that are gone.
    times = np.bincount(of_items, minlength=len(known) + 1)
    first, copies = np.cumsum(times) - times, times[row]
    if (beyond := copy >= copies).any():
        record = distinct(ids).inverse
        fewer = np.bincount(record, beyond) > 0
        copy = np.where(fewer[record], dense_copies(record, copy), copy)
    present = copy < copies
    return np.where(present, by_row[np.where(present, first[row] + copy, 0)], -1)


def _decided_by(run: Run) -> dict[str, Any]:
    tokens = {"append": run.settings.order.append, "tokens": run.settings.order.frozen_tokens or 0}
    if run.settings.order.extends:
        # Stages before the tokens ask what is extended.
        return tokens
    return {**FROZEN.given(run.settings), **tokens, "counted": run.receipt("token_counts").key}


FROZEN = PinnedFit(
    name="frozen",
    rechecked=True,
    version=2,
    asset=False,
    description="What stays of the published plan: what a trainer has consumed, or all of it.",
    reads=("raw_docs", "token_counts", "repeats"),
    when=lambda settings: settings.order.keeps,
    settings=("order.append", "order.frozen_tokens", "sequence.length", "packing.end_of_text"),
    decided_by=_decided_by,
    facts=lambda run, fitted: {"stays": len(unpack(fitted.files[DOCUMENTS])["id"])},
    doing="keeping the published plan",
    compute=freeze_prefix,
    check=refuse_other_plans,
    # No `refit` name: it always follows the published plan.
    drift=frozen_drift,
)
