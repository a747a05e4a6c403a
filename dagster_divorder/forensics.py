"""Which documents a trainer read at which step, where a document is read, and the rest of a training without some
documents.

Steps and sequences count from 0 through all epochs, in the order of training: step i reads sequences [i * B, (i + 1) *
B), where B is `sequence.batch`.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dagster_divorder.core.measure.packed import runs_in_order
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.corpus.ids import find_records, record_names
from dagster_divorder.stages.mix.consumed import DOCUMENTS, SEQUENCES, freeze_prefix, last_output
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.sample import first_lines

if TYPE_CHECKING:
    import pandas as pd

MAX_IDS = 100_000
"""Most ids that `cut` puts into settings."""


def where(
    settings: Settings,
    *,
    steps: Iterable[int] = (),
    sequences: Iterable[int] = (),
    ids: Collection[str] = (),
) -> pd.DataFrame:
    """What some steps or sequences read, or where documents are read, by the plan under these settings.

    One row a run of a document's tokens, in the order of training. Columns: `step`, `sequence` (both counted as in this
    module), `offset` (of the run's first token in the sequence), `tokens`, `id` (your own, else the record id),
    `source`, `cluster_name`, `start` (of the run's first token in the document), `document_tokens`, `first_words` of
    the document.

    Raises:
        InputError: a step or sequence is beyond the plan's end, no record has an id, or nothing is given.
        MissingStageError: there is no plan under these settings.
    """
    import pandas as pd

    run = open_run(settings)
    packed, order, batch = load_packed(run), load_sequence_order(run), settings.sequence.batch
    steps, sequences = _rising("steps", steps), _rising("sequences", sequences)
    if not (steps or sequences or ids):
        raise InputError(
            "nothing to look up; give steps (--step 1200..1210), sequences (--sequence 7) or documents (--id NAME)"
        )
    positions = _positions(order.size, batch, steps, sequences)
    stream = load_stream(run)
    records = stream.items(find_records(run, ids)) if ids else None
    if records is not None:
        has_records = np.zeros(len(packed), bool)
        sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
        has_records[sequence[np.isin(packed.document, records)]] = True
        positions = np.union1d(positions, np.flatnonzero(has_records[order.reshape(-1)]))
    runs, begins = runs_in_order(packed.indptr, order.reshape(-1)[positions])
    sequence = np.repeat(positions, np.diff(begins))
    before = np.cumsum(packed.length[runs]) - packed.length[runs]
    offset = before - np.repeat(before[begins[:-1]], np.diff(begins))
    if records is not None and not (steps or sequences):
        asked = np.isin(packed.document[runs], records)
        runs, sequence, offset = runs[asked], sequence[asked], offset[asked]
    document = packed.document[runs]
    rows, record = stream.view.document_row[document], stream.record(document)
    names, source = load_names(run), settings.input.source_field
    return pd.DataFrame(
        {
            "step": sequence // batch,
            "sequence": sequence,
            "offset": offset,
            "tokens": packed.length[runs],
            "id": record_names(run, record),
            "source": load_fields(run, source).column(source).to_pandas()[record].to_numpy()
            if source
            else None,
            "cluster_name": [names[k] for k in run.column("clusters", "labels")[rows].tolist()],
            "start": packed.start[runs],
            "document_tokens": run.column("token_counts", "lengths")[rows] + settings.packing.end_of_text,
            "first_words": first_lines(run.store, run.view, rows),
        }
    )


@dataclass(frozen=True)
class Cut:
    """Documents cut out of the rest of a training. settings: plan the rest without them. step: the first of the rest.
    ids: of the cut documents. tokens: of the cut documents in the rest. rest: all tokens of the rest."""

    settings: Settings
    step: int
    ids: tuple[str, ...]
    tokens: int
    rest: int


def plan_cut(
    settings: Settings,
    *,
    steps: Iterable[int] = (),
    ids: Collection[str] = (),
    resume_at: int | None = None,
) -> Cut:
    """Cuts the documents of `ids`, and all documents that some steps read, out of the rest of a training. Steps before
    `resume_at` (default: the first of the steps) stay.

    Raises:
        InputError: see `where`; or `resume_at` is missing or beyond the plan; or no document is named.
    """
    run, batch, steps = open_run(settings), settings.sequence.batch, _rising("steps", steps)
    if not (steps or ids):
        raise InputError(
            "no document is named; give steps that read documents (--step 1200..1210), or document ids (--id)"
        )
    resume_at = steps[0] if resume_at is None and steps else resume_at
    if resume_at is None:
        raise InputError(
            "the step to resume at is unknown; give the step of the checkpoint, counted from 0 (--resume-at)"
        )
    packed, order = load_packed(run), load_sequence_order(run).reshape(-1)
    positions = _positions(order.size, batch, steps, ())
    frozen = _tokens_of_steps(run, "resume_at", resume_at)
    stream = load_stream(run)
    runs, _ = runs_in_order(packed.indptr, order[positions])
    records = np.union1d(stream.record(packed.document[runs]), find_records(run, ids))
    if len(records) > MAX_IDS:
        raise InputError(
            f"{len(records):,} documents would be cut; expected at most {MAX_IDS:,}: name fewer steps, or remove the "
            f"documents from the input"
        )
    names = tuple(sorted({*settings.order.cut, *record_names(run, records)}))
    rest, _ = runs_in_order(packed.indptr, order[resume_at * batch :])
    removed = rest[np.isin(stream.record(packed.document[rest]), records)]
    new = settings.order.model_copy(update={"frozen_tokens": frozen, "cut": names})
    return Cut(
        settings=settings.model_copy(update={"order": new}),
        step=resume_at,
        ids=names,
        tokens=int(packed.length[removed].sum()),
        rest=int(packed.length[rest].sum()),
    )


def cut(
    settings: Settings,
    *,
    steps: Iterable[int] = (),
    ids: Collection[str] = (),
    resume_at: int | None = None,
) -> Settings:
    """The settings of `plan_cut`; same arguments and errors."""
    return plan_cut(settings, steps=steps, ids=ids, resume_at=resume_at).settings


@dataclass(frozen=True)
class Freeze:
    """The frozen beginning of the last output, which a trainer has read. settings: keep it. tokens: its tokens, with
    padding. step: the number of steps that read it, None if it ends inside one. sequences, records: in it. rest:
    sequences of the first epoch after it."""

    settings: Settings
    tokens: int
    step: int | None
    sequences: int
    records: int
    rest: int


def plan_freeze(
    settings: Settings, *, step: int | None = None, sequences: int | None = None, tokens: int | None = None
) -> Freeze:
    """Freezes the beginning of the last output that a trainer has read, given by one number: steps of `sequence.batch`
    sequences each, sequences (samples), or tokens, with padding.

    Raises:
        InputError: there is no output, its first epoch is shorter, or it was made with another tokenizer, sequence
            length or batch.
        MissingStageError: the settings and the output have different base models.
    """
    run, sequence = _last_run(settings), settings.sequence
    if step is not None:
        tokens = _tokens_of_steps(run, "step", step)
    elif sequences is not None:
        tokens = _tokens_of_sequences(run, "sequences", sequences, sequences)
    elif tokens is not None:
        _tokens_of_sequences(run, "tokens", tokens, -(-tokens // sequence.length))
    else:
        raise InputError("the part that a trainer has read is unknown; give steps, sequences or tokens")
    files = freeze_prefix(run, tokens) if tokens else {}
    kept = {name: unpack(data) for name, data in files.items()}
    count = len(kept[SEQUENCES]["indptr"]) - 1 if kept else 0
    output, of_step = last_output(run.store), sequence.batch * sequence.length
    return Freeze(
        settings=settings.model_copy(
            update={"order": settings.order.model_copy(update={"frozen_tokens": tokens})}
        ),
        tokens=tokens,
        step=tokens // of_step if step is None and tokens % of_step == 0 else step,
        sequences=count,
        records=len(kept[DOCUMENTS]["id"]) if kept else 0,
        rest=output[1].facts["sequences"] - count if output else 0,
    )


def _last_run(settings: Settings) -> Run:
    """The results of the last run under these settings, whatever it kept of the output before. (If tokens are frozen,
    stages may read other upstreams, so nothing is current under these settings until they have run.)"""
    run = open_run(settings)
    output = last_output(run.store)
    then = output[2].settings.get("order", {}) if output else {}
    fields = type(settings.order).model_fields
    kept = {name: then.get(name, fields[name].default) for name in ("frozen_tokens", "append")}
    order = settings.order.model_copy(update=kept)
    return open_run(settings.model_copy(update={"order": order}))


def _tokens_of_steps(run: Run, name: str, step: int) -> int:
    """Tokens, with padding, that this many steps have read of the last output. name: of the number, for messages.

    Raises:
        InputError: see `_tokens_of_sequences`; or the steps had another batch than these settings.
    """
    output, batch = last_output(run.store), run.settings.sequence.batch
    if output:
        # Receipts leave out settings at their defaults.
        default = type(run.settings.sequence).model_fields["batch"].default
        then = output[2].settings.get("sequence", {}).get("batch", default)
        if then != batch:
            raise InputError(
                f"sequence.batch is {batch:,} but was {then:,} when the order was made, so steps are ambiguous; give "
                f"the number of sequences that the trainer has read (--sequences)"
            )
    return _tokens_of_sequences(run, name, step, step * batch, batch)


def _tokens_of_sequences(run: Run, name: str, given: int, sequences: int, batch: int = 1) -> int:
    """Tokens, with padding, of the first sequences of the last output. Its last batch may be smaller.

    Raises:
        InputError: the number is negative, or the first epoch has fewer.
    """
    output, sequence = last_output(run.store), run.settings.sequence
    end = output[1].facts["sequences"] if output else sequences
    if given < 0 or sequences >= end + batch:
        later = (
            f" of {sequence.epochs:,}, and only the first epoch can be frozen: let the training end on its present "
            f"export, and plan the next training with the new data"
        )
        raise InputError(
            f"{name} is {given:,}; the last output has {end:,} sequences, {end // sequence.batch:,} whole steps of "
            f"{sequence.batch:,}, in an epoch{later if sequence.epochs > 1 and given > 0 else ''}"
        )
    return min(sequences, end) * sequence.length


def _rising(name: str, numbers: Iterable[int]) -> Sequence[int]:
    """Distinct whole numbers in rising order. A range stays a range, because it may be longer than memory."""
    if isinstance(numbers, range):
        return numbers if numbers.step > 0 else numbers[::-1]
    try:
        return sorted({operator.index(number) for number in numbers})
    except TypeError as error:
        raise InputError(
            f"{name} are not whole numbers ({error}); expected whole numbers, such as range(1200, 1210)"
        ) from None


def _positions(total: int, batch: int, steps: Sequence[int], sequences: Sequence[int]) -> np.ndarray:
    """Positions of the sequences of some steps and of some sequences, rising, int64."""
    for name, asked, end in (("step", steps, -(-total // batch)), ("sequence", sequences, total)):
        if asked and not 0 <= asked[0] <= asked[-1] < end:
            wrong = asked[0] if asked[0] < 0 else asked[-1]
            raise InputError(f"{name} is {wrong:,}; over all epochs the plan has {name}s 0 to {end - 1:,}")
    read = (np.array(steps, np.int64)[:, None] * batch + np.arange(batch)).reshape(-1)
    return np.union1d(read[read < total], np.array(sequences, np.int64))
