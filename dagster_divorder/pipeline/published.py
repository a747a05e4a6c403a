"""The published plan: what trainers read, kept until a run publishes another.

A plan says which tokens every step reads. A run records it, with the results of ORDERS, before it replaces the first
file of the output or an export; the plan is published once these all hold it. `order.frozen_tokens`,
`order.append = "extend"`, `freeze`, `cut` and `where` go by the published plan, whatever stages have computed since.

Nothing tells whether a trainer has read an output. While `order.frozen_tokens` is unset, a run refuses to write one in
another order (`refuse_to_reorder` in stages/mix/consumed.py, once the new order is known), and a plan says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.store.state import HISTORY, State, TrainingPlan, changing, load_result, load_state

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run

ORDERS = ("greedy_order", "packed_sequences", "sequence_order")
"""The stages that together decide what a trainer reads; each reads the one before."""
SAY_WHAT_WAS_READ = (
    "if no trainer has read it, set order.frozen_tokens = 0; if one has, `divorder freeze --step N` keeps the rows of "
    "N steps"
)


def last_published(state: State) -> TrainingPlan | None:
    """The plan that was published last."""
    return next((plan for plan in reversed(state.plans) if plan.published), None)


def record_plan(run: Run, fingerprint: str, keys: Mapping[str, str], *, published: bool = False) -> None:
    """Record the plan of the current orders. keys: as `TrainingPlan.keys`, of what is written."""
    results = {stage: load_result(run.store, stage, run.receipt(stage).key) for stage in ORDERS}
    orders = {stage: result for stage, result in results.items() if result}
    batch = run.settings.sequence.batch

    def record(state: State) -> State:
        last = last_published(state)
        same = [plan for plan in state.plans if (plan.fingerprint, plan.batch) == (fingerprint, batch)]
        plan = TrainingPlan(
            fingerprint=fingerprint,
            batch=batch,
            keys={**(same[0].keys if same else {}), **keys},
            orders=orders,
            published=published or last in same,
        )
        others = [known for known in state.plans if known not in same]
        kept = [known for known in others if known == last or known in others[1 - HISTORY :]]
        return replace(state, plans=[*kept, plan])

    changing(run.store, record)


def publish(run: Run, stages: Iterable[str]) -> None:
    """After a run of some stages: the current plan is published if output and exports hold it."""
    graph = run.graph
    written = [stage for stage in (OUTPUT, "exports") if stage in graph and graph[stage].when(run.settings)]
    if not set(written).isdisjoint(stages) and all(map(run.is_current, written)):
        receipt = run.receipt(written[-1])
        fingerprint = receipt.facts.get("plan", receipt.version)
        record_plan(run, fingerprint, _keys_in_place(run, output=True), published=True)


def plans_in_place(run: Run, *, output: bool = False) -> dict[str, TrainingPlan | None]:
    """The exports that there are under these settings, or without exports the output -> the plan that each holds, or
    held until a killed run began to replace it; None if the store does not know it. output: the output in any case."""
    plans = load_state(run.store).plans
    return {place: plan_of(plans, key) for place, key in _keys_in_place(run, output).items()}


def _keys_in_place(run: Run, output: bool) -> dict[str, str]:
    exports = run.settings.exports
    places = {exports.path / name: EXPORT_MANIFEST for name in exports.formats}
    if output or not places:
        places[run.settings.output.path] = MANIFEST
    manifests = {place: read_manifest(place, name, replaced=True) for place, name in places.items()}
    return {str(place): manifest["key"] for place, manifest in manifests.items() if manifest}


def plan_of(plans: list[TrainingPlan], key: str) -> TrainingPlan | None:
    """The plan of a manifest's key."""
    return next((plan for plan in reversed(plans) if key in plan.keys.values()), None)


def plan_that_stays(run: Run) -> TrainingPlan | None:
    """The published plan; under `extend` a later one, if a killed run has begun to write it."""
    state = load_state(run.store)
    held = plans_in_place(run, output=True).values() if run.settings.order.extends else ()
    return max(filter(None, [last_published(state), *held]), key=state.plans.index, default=None)


def name_of(plan: TrainingPlan | None) -> str:
    return f"plan {plan.fingerprint}" if plan else "a plan that this store does not know"


def in_training_order(settings: Settings) -> list[tuple[Place, str]]:
    """(folder, name of its manifest) of every output whose rows lie in the order of training: the exports; without
    exports, the curated output if its records are not packed."""
    if settings.exports.formats:
        return [(settings.exports.path / name, EXPORT_MANIFEST) for name in settings.exports.formats]
    return [] if settings.packing.packs else [(settings.output.path, MANIFEST)]


def refusal_ahead(settings: Settings) -> str:
    """Which outputs a run would refuse to write in another order, and what to set; "" if the settings say what stays
    (`order.frozen_tokens`, `order.append`) or there is no output. Raises StoreError: a manifest cannot be read."""
    if settings.order.says_what_stays:
        return ""
    outputs = in_training_order(settings)
    places = [str(place) for place, name in outputs if read_manifest(place, name, replaced=True)]
    if not places:
        return ""
    return (
        f"order.frozen_tokens is unset, so a run that changes the order of {' and '.join(places)} is refused: "
        f"{SAY_WHAT_WAS_READ}"
    )
