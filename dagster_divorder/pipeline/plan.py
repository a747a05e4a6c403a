"""What a run would do, before it does it: what each stage would compute, why, for how long, and the disk in use.

Every stage decides as it does when it runs (`Stage.decide`), on what the stages before it would come to. The input is
read as a run reads it, and nothing is stored. Times are the last measured seconds a new document; before a stage has
run on a store they are rough, `Stage.pace` of another machine (pipeline/estimate.py measures on this one).
What only a run can tell is said (`unless`): whether new documents lie too far from the centroids, or leave the bins,
and whether what is made again comes out as it was, so that nothing follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.changes import what_changed
from dagster_divorder.pipeline.graph import OUTPUT, Graph, default_graph
from dagster_divorder.pipeline.prune import disk_use
from dagster_divorder.pipeline.run import Run, ToBeMadeError, check_settings
from dagster_divorder.pipeline.stage import Decision, Size
from dagster_divorder.settings import Settings
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.state import load_receipt
from dagster_divorder.write.curated import refuse_foreign_files

BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage: how much it would compute (in documents), why, and `unless` what. seconds: as it took the last time,
    or `rough`, as on another machine; None where neither is known."""

    stage: str
    scope: str
    why: str
    unless: str
    documents: int
    seconds: float | None
    rough: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do. `new_records` were never seen; `disk` is bytes by part of the store."""

    records: int
    new_records: int
    stages: tuple[StagePlan, ...]
    disk: dict[str, int]


def make_plan(settings: Settings, *stages: str, graph: Graph | None = None) -> Plan:
    """Plan a run of some stages, by default of all that an output needs, on the store as it is.

    Raises:
        InputError: the input cannot be read, or too much of it would be refused.
    """
    graph = graph or default_graph()
    store = store_of(settings.store).open(create=False)
    wanted = graph.needed(settings, *stages)
    if OUTPUT in wanted:
        refuse_foreign_files(store, settings)
    run = Run(settings, store, Silent(), graph, planning=True)
    check_settings(run, wanted)
    run.foreseen = dict.fromkeys(wanted)
    plans = tuple(_plan(run, stage) for stage in wanted)
    records = run.corpus.records
    return Plan(records, run.receipt("raw_docs").facts["new_records"], plans, disk_use(store))


def _plan(run: Run, stage: str) -> StagePlan:
    run.memo = {}
    receipt = load_receipt(run.store, stage)
    try:
        decision = run.graph[stage].decide(run)
    except ToBeMadeError as missing:
        # What was never made cannot come out as it was.
        as_it_was = f"{missing.stage} comes out as it was" if receipt else ""
        why = what_changed(run.graph[stage], run, str(missing))
        decision = Decision(scope="all", documents=run.corpus.documents, why=why, unless=as_it_was)
    run.foreseen[stage] = decision.receipt
    why = decision.why
    if not why:
        same = receipt and decision.receipt and receipt.version == decision.receipt.version
        why = "up to date" if same else "kept from other settings"
    pace = receipt.facts.get("seconds_per_new_document") if receipt else None
    seconds: float | None = 0.0
    if decision.documents:
        seconds = (
            _rough_seconds(run, stage, decision.documents) if pace is None else decision.documents * pace
        )
    rough = pace is None and bool(seconds)
    return StagePlan(stage, decision.scope, why, decision.unless, decision.documents, seconds, rough)


def _rough_seconds(run: Run, stage: str, documents: int) -> float | None:
    """What a stage takes for so many documents, by its own pace."""
    pace = run.graph[stage].pace
    if pace is None:
        return None
    whole = run.receipt("raw_docs").facts["record_bytes"]
    size = Size(run.corpus.documents, whole, whole / BYTES_PER_TOKEN)
    part = size.times(documents / max(1, run.corpus.documents))
    return pace[0] + pace[1] * run.graph[stage].amount(run.settings, part) / 1e6
