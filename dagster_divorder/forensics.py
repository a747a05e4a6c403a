"""Which documents a trainer read when, and where a document is read; what is still to be read without some of them.

Steps and sequences count from 0 through all epochs, in the order of training: step i reads the sequences i * B up to
(i + 1) * B, B being `sequence.batch`.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dagster_divorder.core.measure.packed import runs_in_order
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.corpus.ids import find_records, record_names
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.store.sample import first_lines

if TYPE_CHECKING:
    import pandas as pd

MAX_IDS = 100_000
"""Of documents that `cut` puts into settings."""


def where(
    settings: Settings,
    *,
    steps: Iterable[int] = (),
    sequences: Iterable[int] = (),
    ids: Collection[str] = (),
) -> pd.DataFrame:
    """What some steps or sequences read, or where some documents are read, by the plan under these settings.

    One row a run of a document's tokens, in the order of training. Columns: `step`, `sequence` (both as the module
    counts them), `offset` (token of the sequence at which the run begins), `tokens`, `id` (your own, else the record
    id), `source`, `cluster_name`, `start` (token of the document), `document_tokens`, `first_words` of the document.

    Raises:
        InputError: a step or sequence is beyond the plan's end, the input holds no record of an id, or none of them is
            given.
        MissingStageError: there is no plan under these settings.
    """
    import pandas as pd

    run = open_run(settings)
    packed, order, batch = load_packed(run), load_sequence_order(run), settings.sequence.batch
    steps, sequences = _rising("steps", steps), _rising("sequences", sequences)
    if not (steps or sequences or ids):
        raise InputError(
            "nothing is asked for; give steps (--step 1200..1210), sequences (--sequence 7) or documents (--id NAME)"
        )
    positions = _positions(order.size, batch, steps, sequences)
    stream = load_stream(run)
    records = stream.items(find_records(run, ids)) if ids else None
    if records is not None:
        held = np.zeros(len(packed), bool)
        sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
        held[sequence[np.isin(packed.document, records)]] = True
        positions = np.union1d(positions, np.flatnonzero(held[order.reshape(-1)]))
    runs, begins = runs_in_order(packed.indptr, order.reshape(-1)[positions])
    sequence = np.repeat(positions, np.diff(begins))
    before = np.cumsum(packed.length[runs]) - packed.length[runs]
    offset = before - np.repeat(before[begins[:-1]], np.diff(begins))
    if records is not None and not (steps or sequences):
        some = np.isin(packed.document[runs], records)
        runs, sequence, offset = runs[some], sequence[some], offset[some]
    document = packed.document[runs]
    rows, of = stream.view.document_row[document], stream.record(document)
    names, source = load_names(run), settings.input.source_field
    return pd.DataFrame(
        {
            "step": sequence // batch,
            "sequence": sequence,
            "offset": offset,
            "tokens": packed.length[runs],
            "id": record_names(run, of),
            "source": load_fields(run, source).column(source).to_pandas()[of].to_numpy() if source else None,
            "cluster_name": [names[k] for k in run.column("clusters", "labels")[rows].tolist()],
            "start": packed.start[runs],
            "document_tokens": run.column("token_counts", "lengths")[rows] + settings.packing.end_of_text,
            "first_words": first_lines(run.store, run.view, rows),
        }
    )


@dataclass(frozen=True)
class Cut:
    """Documents that are cut out of the rest of a training. settings: plan it without them. step: from which on. ids:
    of all documents that are cut. tokens, rest: what would still be read of them, and of all documents."""

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
    """Cut documents out of what is still to be read: those of `ids`, and all that some steps read. What a trainer has
    consumed up to step `resume_at` (by default the first of the steps) stays.

    Raises:
        InputError: as `where`; nothing says where training goes on, or it is no step of the plan; no document is named.
    """
    run, batch, steps = open_run(settings), settings.sequence.batch, _rising("steps", steps)
    if not (steps or ids):
        raise InputError(
            "no document is named; give steps that read them (--step 1200..1210), or their ids (--id)"
        )
    resume_at = steps[0] if resume_at is None and steps else resume_at
    if resume_at is None:
        raise InputError(
            "nothing says where training goes on; give the step of the checkpoint, counted from 0 (--resume-at)"
        )
    packed, order = load_packed(run), load_sequence_order(run).reshape(-1)
    positions = _positions(order.size, batch, steps, ())
    if not 0 <= resume_at <= order.size // batch:
        raise InputError(
            f"resume_at is {resume_at:,}; the plan has {order.size // batch:,} whole steps, and a checkpoint is behind "
            "none or some of them"
        )
    stream = load_stream(run)
    runs, _ = runs_in_order(packed.indptr, order[positions])
    records = np.union1d(stream.record(packed.document[runs]), find_records(run, ids))
    if len(records) > MAX_IDS:
        raise InputError(
            f"{len(records):,} documents are to be cut; expected at most {MAX_IDS:,}: name fewer steps, or take the "
            "documents out of the input"
        )
    names = tuple(sorted({*settings.order.cut, *record_names(run, records)}))
    rest, _ = runs_in_order(packed.indptr, order[resume_at * batch :])
    gone = rest[np.isin(stream.record(packed.document[rest]), records)]
    frozen = resume_at * batch * settings.sequence.length
    new = settings.order.model_copy(update={"frozen_tokens": frozen, "cut": names})
    return Cut(
        settings=settings.model_copy(update={"order": new}),
        step=resume_at,
        ids=names,
        tokens=int(packed.length[gone].sum()),
        rest=int(packed.length[rest].sum()),
    )


def cut(
    settings: Settings,
    *,
    steps: Iterable[int] = (),
    ids: Collection[str] = (),
    resume_at: int | None = None,
) -> Settings:
    """The settings of `plan_cut`, which see."""
    return plan_cut(settings, steps=steps, ids=ids, resume_at=resume_at).settings


def _rising(name: str, numbers: Iterable[int]) -> Sequence[int]:
    """Whole numbers in rising order, each once. A range stays one: it may be longer than memory."""
    if isinstance(numbers, range):
        return numbers if numbers.step > 0 else numbers[::-1]
    try:
        return sorted({operator.index(number) for number in numbers})
    except TypeError as error:
        raise InputError(
            f"{name} are no whole numbers ({error}); expected some, such as range(1200, 1210)"
        ) from None


def _positions(total: int, batch: int, steps: Sequence[int], sequences: Sequence[int]) -> np.ndarray:
    """Sequences that some rising steps read, and some others, int64 rising."""
    for name, asked, end in (("step", steps, -(-total // batch)), ("sequence", sequences, total)):
        if asked and not 0 <= asked[0] <= asked[-1] < end:
            wrong = asked[0] if asked[0] < 0 else asked[-1]
            raise InputError(
                f"{name} is {wrong:,}; the plan has {name}s 0 to {end - 1:,}, all epochs together"
            )
    read = (np.array(steps, np.int64)[:, None] * batch + np.arange(batch)).reshape(-1)
    return np.union1d(read[read < total], np.array(sequences, np.int64))
