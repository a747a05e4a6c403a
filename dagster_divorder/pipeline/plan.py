"""Plans a run: what each stage would compute and why, and the disk in use.

Every stage decides as in a run (`Stage.decide`), on the results that the stages before it would have. A plan reads the
input as a run does, and stores nothing. `unless` names what only a run can find out: new documents lie too far from the
centroids or outside the bins; or a result comes out unchanged, so that later stages have nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.changes import what_changed
from dagster_divorder.pipeline.graph import OUTPUT, Graph
from dagster_divorder.pipeline.prune import disk_use
from dagster_divorder.pipeline.reordered import moved_by_appends, refusal_ahead
from dagster_divorder.pipeline.run import Run, ToBeMadeError, check_settings
from dagster_divorder.pipeline.stage import Decision
from dagster_divorder.settings import Settings
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.state import load_receipt
from dagster_divorder.write.curated import refuse_foreign_files


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What one stage would compute: for how many documents, why, and `unless` what."""

    stage: str
    scope: str
    why: str
    unless: str
    documents: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do. new_records: number of records never seen before. disk: bytes by part of the store.
    refusal: what to set before a new order (`reordered.refusal_ahead`); "" if nothing. moved: exports that are written
    again although outputs are extended (`reordered.moved_by_appends`); "" if none."""

    records: int
    new_records: int
    stages: tuple[StagePlan, ...]
    disk: dict[str, int]
    refusal: str = ""
    moved: str = ""


def make_plan(graph: Graph, settings: Settings, *stages: str) -> Plan:
    """Plan a run of some stages, by default of all that an output needs, on the store as it is.

    Raises:
        InputError: the input cannot be read, or too much of it would be refused.
    """
    store = store_of(settings.store).open(create=False)
    wanted = graph.needed(settings, *stages)
    if OUTPUT in wanted:
        refuse_foreign_files(store, settings)
    run = Run(settings, store, graph, Silent(), planning=True)
    check_settings(run, wanted)
    run.foreseen = dict.fromkeys(wanted)
    plans = tuple(_plan(run, stage) for stage in wanted)
    records, new = run.corpus.records, run.receipt("raw_docs").facts["new_records"]
    computed = {plan.stage for plan in plans if plan.scope != "nothing"}
    return Plan(
        records,
        new,
        plans,
        disk_use(store),
        refusal_ahead(settings) if "sequence_order" in computed else "",
        moved_by_appends(settings, settings.exports.formats) if "exports" in computed else "",
    )


def _plan(run: Run, stage: str) -> StagePlan:
    run.memo = {}
    receipt = load_receipt(run.store, stage)
    try:
        decision = run.graph[stage].decide(run)
    except ToBeMadeError as missing:
        # Without an earlier result there is nothing to keep.
        unless = f"{missing.stage} comes out unchanged" if receipt else ""
        why = what_changed(run.graph[stage], run, str(missing))
        documents = run.graph[stage].all_documents(run)
        decision = Decision(scope="all", documents=documents, why=why, unless=unless)
    run.foreseen[stage] = decision.receipt
    why = decision.why
    if not why:
        same = receipt and decision.receipt and receipt.version == decision.receipt.version
        why = "up to date" if same else "kept from other settings"
    return StagePlan(stage, decision.scope, why, decision.unless, decision.documents)
