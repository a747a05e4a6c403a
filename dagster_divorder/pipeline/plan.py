"""Plans a run: what each stage would compute and why.

Every stage decides as in a run (`Stage.decide`), on the results that the stages before it would have. A plan reads the
input as a run does, and stores nothing. `unless` names what only a run can find out: new documents lie too far from the
centroids or outside the bins; or a result comes out unchanged, so that later stages have nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.graph import OUTPUT, Graph
from dagster_divorder.pipeline.published import refusal_ahead
from dagster_divorder.pipeline.run import Run, ToBeMadeError, check_settings
from dagster_divorder.pipeline.stage import Decision, what_changed
from dagster_divorder.settings import Settings
from dagster_divorder.store.objects import store_at
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
    """What a run would do. new_records: number of records never seen before. refusal: what to set before a new order
    (`published.refusal_ahead`); "" if nothing."""

    records: int
    new_records: int
    stages: tuple[StagePlan, ...]
    refusal: str = ""


def make_plan(graph: Graph, settings: Settings, *stages: str) -> Plan:
    """Plan a run of some stages, by default of all that an output needs, on the store as it is. Raises InputError:
    the input cannot be read, or too much of it would be refused."""
    store = store_at(settings.store.path).open(create=False)
    wanted = graph.needed(settings, *stages)
    if OUTPUT in wanted:
        refuse_foreign_files(store, settings)
    run = Run(settings, store, graph, Silent(), planning=True)
    check_settings(run, wanted)
    run.foreseen = dict.fromkeys(wanted)
    plans = tuple(_plan(run, stage) for stage in wanted)
    new = run.receipt("raw_docs").facts["new_records"]
    reorders = any(plan.stage == "sequence_order" and plan.scope != "nothing" for plan in plans)
    refusal = refusal_ahead(settings) if reorders else ""
    return Plan(len(run.view), new, plans, refusal)


def _plan(run: Run, name: str) -> StagePlan:
    run.memo = {}
    stage, receipt = run.graph[name], load_receipt(run.store, name)
    try:
        decision = stage.decide(run)
    except ToBeMadeError as missing:
        # Without an earlier result there is nothing to keep.
        unless = f"{missing.stage} comes out unchanged" if receipt else ""
        why, documents = what_changed(stage, run, str(missing)), stage.all_documents(run)
        decision = Decision(scope="all", documents=documents, why=why, unless=unless)
    run.foreseen[name] = decision.receipt
    same = receipt and decision.receipt and receipt.version == decision.receipt.version
    why = decision.why or ("up to date" if same else "kept from other settings")
    return StagePlan(name, decision.scope, why, decision.unless, decision.documents)
