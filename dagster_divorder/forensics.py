"""Which documents a trainer read at which step, where a document is read, and what of a plan stays because it was read.

All of it goes by the published plan (`pipeline.published`), or by another `plan`: a fingerprint, or the folder of an
export. Steps and sequences count from 0 through all epochs, in the order of training: step i reads sequences [i * B,
(i + 1) * B), where B is the plan's `sequence.batch`.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.core.measure.runs import runs_in_order
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.corpus.stored import first_lines
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.published import last_published, name_of, plan_of, plans_in_place
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import as_place
from dagster_divorder.stages import open_run
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.corpus.ids import find_records, record_names
from dagster_divorder.stages.mix.consumed import DOCUMENTS, SEQUENCES, freeze_prefix, plan_items
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.frozen import locate
from dagster_divorder.stages.order.packed_sequences import unpack_plan
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.ids import hex_ids
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.store.state import State, TrainingPlan, changing, load_receipt, load_state
from dagster_divorder.view.words import count

if TYPE_CHECKING:
    import pandas as pd


def where(
    settings: Settings,
    *,
    steps: Iterable[int] = (),
    sequences: Iterable[int] = (),
    ids: Collection[str] = (),
    plan: str | None = None,
) -> pd.DataFrame:
    """What some steps or sequences read, or where documents are read.

    One row a run of a document's tokens, in the order of training. Columns: `step`, `sequence` (both counted as in this
    module), `offset` (of the run's first token in the sequence), `tokens`, `id` (your own, else the record id),
    `source`, `cluster_name`, `start` (of the run's first token in the document), `document_tokens`, `first_words` of
    the document. Its `attrs` name the `plan` and its `batch`.

    Raises:
        InputError: see `find_plan`; or a step or sequence is beyond the plan's end, steps had another batch than these
            settings, a record of the plan is no longer in the input, no record has an id, or nothing is given.
        MissingStageError: documents have no clusters under these settings.
    """
    import pandas as pd

    run, steps, sequences = _last_run(settings), _rising(steps), _rising(sequences)
    if not (steps or sequences or ids):
        raise InputError(
            "nothing to look up; give steps (--step 1200..1210), sequences (--sequence 7) or documents (--id NAME)"
        )
    found = find_plan(run, plan)
    if steps:
        _refuse_other_batch(run, found)
    stream, batch = load_stream(run), found.batch
    packed, order = _load_plan(run, found)
    positions = _positions(order.size, batch, steps, sequences)
    records = stream.items(find_records(run, ids)) if ids else None
    if records is not None:
        has_records = np.zeros(len(packed), bool)
        sequence = np.repeat(np.arange(len(packed)), np.diff(packed.indptr))
        has_records[sequence[np.isin(packed.document, records)]] = True
        positions = np.union1d(positions, np.flatnonzero(has_records[order]))
    runs, begins = runs_in_order(packed.indptr, order[positions])
    sequence = np.repeat(positions, np.diff(begins))
    before = np.cumsum(packed.length[runs]) - packed.length[runs]
    offset = before - np.repeat(before[begins[:-1]], np.diff(begins))
    if records is not None and not (steps or sequences):
        asked = np.isin(packed.document[runs], records)
        runs, sequence, offset = runs[asked], sequence[asked], offset[asked]
    document = packed.document[runs]
    record = stream.record_of[document]
    names, source = load_names(run), settings.input.source_field
    end_of_text = found.orders["packed_sequences"].facts["end_of_text"]
    frame = pd.DataFrame(
        {
            "step": sequence // batch,
            "sequence": sequence,
            "offset": offset,
            "tokens": packed.length[runs],
            "id": record_names(run, record),
            "source": load_fields(run, source).column(source).to_pandas()[record].to_numpy()
            if source
            else None,
            "cluster_name": [names[k] for k in run.column("clusters", "labels")[record].tolist()],
            "start": packed.start[runs],
            "document_tokens": run.column("token_counts", "lengths")[record] + end_of_text,
            "first_words": first_lines(run.records, run.view, record),
        }
    )
    frame.attrs = {"plan": found.fingerprint, "batch": batch}
    return frame


def _load_plan(run: Run, plan: TrainingPlan) -> tuple[PackedSequences, np.ndarray]:
    """(the sequences of a plan, of the items of the stream as it is now; all epochs in order, int64 (E * S,)).

    Raises:
        InputError: a record of the plan is no longer in the input.
    """
    packed = unpack_plan(unpack(run.store.read_verified(plan.orders["packed_sequences"].files["plan"])))
    order = unpack(run.store.read_verified(plan.orders["sequence_order"].files["order"]))["order"]
    ids, copy = plan_items(run, plan.orders)
    item = locate(run, ids, copy)
    if (gone := np.flatnonzero(item < 0)).size:
        raise InputError(
            f"{gone.size:,} records of plan {plan.fingerprint} are no longer in the input (the first has the id "
            f"{hex_ids(ids[gone[:1]])[0]}): restore them, and run `divorder run`"
        )
    return replace(packed, document=item[packed.document]), order.reshape(-1)


@dataclass(frozen=True)
class Freeze:
    """The frozen beginning of a plan, which a trainer has read. settings: keep it. plan: its fingerprint. tokens: its
    tokens, with padding. step: the number of steps that read it, None if it ends inside one. sequences, records: in it.
    rest: sequences of the first epoch after it."""

    settings: Settings
    plan: str
    tokens: int
    step: int | None
    sequences: int
    records: int
    rest: int

    @property
    def sentences(self) -> list[str]:
        """What stays, and what the next run may move."""
        if not self.tokens:
            return ["nothing is frozen; the next run reorders everything"]
        sequence, rest = self.settings.sequence, count(self.rest, "sequence")
        steps = "" if self.step is None else f", {count(self.step, 'step')} of {sequence.batch:,}"
        behind = f"the next run may move the {rest} after them, and puts new data there"
        if not self.rest:
            behind = "nothing comes after them yet; the next run puts new data there"
        elif self.settings.order.extends:
            behind = f"full ones of the {rest} after them stay, too (order.append)"
        return [
            f"the first {self.tokens:,} tokens of plan {self.plan} stay: {count(self.sequences, 'sequence')} of "
            f"{sequence.length:,}{steps}, with {count(self.records, 'record')}",
            behind,
        ]


def plan_freeze(
    settings: Settings,
    *,
    step: int | None = None,
    sequences: int | None = None,
    plan: str | None = None,
) -> Freeze:
    """Freezes the beginning of the published plan that a trainer has read, given by one number: steps of
    `sequence.batch` sequences each, or sequences (samples). A `plan` counts as published from then on.

    Raises:
        InputError: see `find_plan`; or its first epoch is shorter, or it was made with another tokenizer, sequence
            length or batch.
        MissingStageError: the settings and the plan have different base models.
    """
    run, sequence = _last_run(settings), settings.sequence
    found = find_plan(run, plan)
    end, batch = found.orders["packed_sequences"].facts["sequences"], 1
    if step is not None:
        _refuse_other_batch(run, found)
        # The last batch may be smaller.
        name, given, read, batch = "step", step, step * found.batch, found.batch
    elif sequences is not None:
        name, given, read = "sequences", sequences, sequences
    else:
        raise InputError("the part that a trainer has read is unknown; give steps or sequences")
    if given < 0 or read >= end + batch:
        later = (
            f" of {sequence.epochs:,}, and only the first epoch can be frozen: let the training end on its present "
            f"export, and plan the next training with the new data"
        )
        raise InputError(
            f"{name} is {given:,}; plan {found.fingerprint} has {end:,} sequences, {end // found.batch:,} whole steps "
            f"of {found.batch:,}, in an epoch{later if sequence.epochs > 1 and given > 0 else ''}"
        )
    tokens = min(read, end) * sequence.length
    files = freeze_prefix(run, tokens, found) if tokens else {}
    kept = {name: unpack(data) for name, data in files.items()}
    stay = len(kept[SEQUENCES]["indptr"]) - 1 if kept else 0
    of_step = found.batch * sequence.length
    if plan is not None:
        hold_plan(run.store, found)
    return Freeze(
        settings=settings.model_copy(
            update={"order": settings.order.model_copy(update={"frozen_tokens": tokens})}
        ),
        plan=found.fingerprint,
        tokens=tokens,
        step=tokens // of_step if step is None and tokens % of_step == 0 else step,
        sequences=stay,
        records=len(kept[DOCUMENTS]["id"]) if kept else 0,
        rest=end - stay,
    )


def _last_run(settings: Settings) -> Run:
    """The results of the last run under these settings, whatever it kept of the plan before. (If tokens are frozen,
    stages may read other upstreams, so nothing is current under these settings until they have run.)"""
    last = load_receipt(open_run(settings).store, "sequence_order")
    then = last.settings.get("order", {}) if last else {}
    fields = type(settings.order).model_fields
    kept = {name: then.get(name, fields[name].default) for name in ("frozen_tokens", "append")}
    order = settings.order.model_copy(update=kept)
    return open_run(settings.model_copy(update={"order": order}))


def _refuse_other_batch(run: Run, plan: TrainingPlan) -> None:
    if run.settings.sequence.batch != plan.batch:
        raise InputError(
            f"sequence.batch is {run.settings.sequence.batch:,} but was {plan.batch:,} when the order was made (plan "
            f"{plan.fingerprint}), so steps are ambiguous; give sequences instead (`freeze --sequences`, `where "
            f"--sequence`), or set sequence.batch = {plan.batch}"
        )


def _rising(numbers: Iterable[int]) -> Sequence[int]:
    """Distinct numbers in rising order. A range stays a range, because it may be longer than memory."""
    if isinstance(numbers, range) and numbers.step > 0:
        return numbers
    return sorted({operator.index(number) for number in numbers})


def _positions(total: int, batch: int, steps: Sequence[int], sequences: Sequence[int]) -> np.ndarray:
    """Positions of the sequences of some steps and of some sequences, rising, int64."""
    for name, asked, end in (("step", steps, -(-total // batch)), ("sequence", sequences, total)):
        if asked and not 0 <= asked[0] <= asked[-1] < end:
            wrong = asked[0] if asked[0] < 0 else asked[-1]
            raise InputError(f"{name} is {wrong:,}; over all epochs the plan has {name}s 0 to {end - 1:,}")
    read = (np.array(steps, np.int64)[:, None] * batch + np.arange(batch)).reshape(-1)
    return np.union1d(read[read < total], np.array(sequences, np.int64))


def find_plan(run: Run, named: str | None) -> TrainingPlan:
    """The published plan, or another one. named: its fingerprint, or the folder of an export. Raises InputError:
    none was published, an export holds another one, or the store does not know the named one."""
    state = load_state(run.store)
    if named is not None:
        place = as_place(named)
        manifests = (read_manifest(place, name, replaced=True) for name in (EXPORT_MANIFEST, MANIFEST))
        manifest: Any = next(filter(None, manifests), {"key": ""})
        by_name = (known for known in reversed(state.plans) if known.fingerprint == named)
        if found := plan_of(state.plans, manifest["key"]) or next(by_name, None):
            return found
        raise InputError(
            f"the plan is {named!r}; expected the folder of an export, or a plan that {run.store.place} still has: "
            f"{', '.join(known.fingerprint for known in state.plans) or 'none'}"
        )
    plan = last_published(state)
    if plan is None:
        raise InputError(f"no plan was published in {run.store.place}; expected a finished run: divorder run")
    for folder, other in plans_in_place(run).items():
        if other != plan:
            raise InputError(
                f"{folder} holds {name_of(other)}, but plan {plan.fingerprint} was published last: finish the "
                f"interrupted run (divorder run), or name the plan that is meant (--plan {folder})"
            )
    return plan


def hold_plan(store: Store, plan: TrainingPlan) -> None:
    """Make a plan the published one, because a trainer holds it."""

    def hold(state: State) -> State:
        others = [known for known in state.plans if known != plan]
        return replace(state, plans=[*others, replace(plan, published=True)])

    with store.lock(wait=True):
        changing(store, hold)
