"""The published plan: what trainers read, kept until a run publishes another.

A plan says which tokens every step reads. Output and exports hold it. Before a run replaces the first of their files it
records the plan, with the results of ORDERS, and once they all hold it the plan is published. `order.frozen_tokens`,
`order.append = "extend"`, `freeze`, `cut` and `where` go by the published plan, whatever stages have computed since.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import as_place
from dagster_divorder.store.base import Store
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.store.state import HISTORY, TrainingPlan, changing, load_result, load_state, save_state

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run

EXPORTS = "exports"
ORDERS = ("greedy_order", "packed_sequences", "sequence_order")
"""The stages that together decide what a trainer reads; each reads the one before."""


def published_plan(store: Store) -> TrainingPlan | None:
    """The plan that was published last."""
    return next((plan for plan in reversed(load_state(store).plans) if plan.published), None)


def record_plan(run: Run, fingerprint: str, keys: Mapping[str, str], *, published: bool = False) -> None:
    """Record the plan of the current orders, before its files are written. keys: as `TrainingPlan.keys`."""
    orders = {stage: load_result(run.store, stage, run.receipt(stage).key) for stage in ORDERS}
    plan = TrainingPlan(
        fingerprint=fingerprint,
        batch=run.settings.sequence.batch,
        keys={**keys},
        orders={stage: result for stage, result in orders.items() if result},
        published=published,
    )
    last, others = published_plan(run.store), []
    with changing(run.store) as state:
        for known in state.plans:
            if (known.fingerprint, known.batch) == (plan.fingerprint, plan.batch):
                plan = replace(plan, keys=known.keys | plan.keys, published=published or known == last)
            else:
                others.append(known)
        kept = [known for known in others if known == last or known in others[1 - HISTORY :]]
        save_state(run.store, replace(state, plans=[*kept, plan]))


def publish(run: Run, stages: Iterable[str]) -> None:
    """After a run of some stages: the current plan is published if output and exports hold it."""
    written = [
        stage for stage in (OUTPUT, EXPORTS) if stage in run.graph and run.graph[stage].when(run.settings)
    ]
    if set(written).isdisjoint(stages) or not all(map(run.is_current, written)):
        return
    receipt = run.receipt(written[-1])
    fingerprint, batch = receipt.facts.get("plan", receipt.version), run.settings.sequence.batch
    plans = load_state(run.store).plans
    if not plans or (plans[-1].fingerprint, plans[-1].batch, plans[-1].published) != (
        fingerprint,
        batch,
        True,
    ):
        record_plan(run, fingerprint, _keys_in_place(run.settings, output=True), published=True)


def plans_in_place(run: Run, *, output: bool = False) -> dict[str, TrainingPlan | None]:
    """The exports that there are under these settings, or without exports the output -> the plan that each holds, or
    held until a killed run began to replace it; None if the store does not know it. output: the output in any case."""
    return {place: _plan_of(run.store, key) for place, key in _keys_in_place(run.settings, output).items()}


def _keys_in_place(settings: Settings, output: bool) -> dict[str, str]:
    places = {settings.exports.path / name: EXPORT_MANIFEST for name in settings.exports.formats}
    if output or not places:
        places[settings.output.path] = MANIFEST
    manifests = {place: read_manifest(place, name, replaced=True) for place, name in places.items()}
    return {str(place): manifest["key"] for place, manifest in manifests.items() if manifest}


def plan_that_stays(run: Run) -> TrainingPlan | None:
    """The plan whose beginning stays under these settings: the published one. What a killed run has extended is
    extended in turn."""
    last = published_plan(run.store)
    if not run.settings.order.extends:
        return last
    plans = load_state(run.store).plans
    return max(
        filter(None, [last, *plans_in_place(run, output=True).values()]), key=plans.index, default=None
    )


def find_plan(run: Run, named: str | os.PathLike[str] | None) -> TrainingPlan:
    """The published plan, or another one. named: its fingerprint, or the folder of an export.

    Raises:
        InputError: none was published, an export holds another one, or the store does not know the named one.
    """
    plan, plans = published_plan(run.store), load_state(run.store).plans
    if named is not None:
        named = os.fspath(named)
        manifest = read_manifest(as_place(named), EXPORT_MANIFEST) or read_manifest(as_place(named)) or {}
        found = _plan_of(run.store, manifest.get("key", ""))
        found = found or next((known for known in reversed(plans) if known.fingerprint == named), None)
        if found is None:
            known = ", ".join(known.fingerprint for known in plans)
            raise InputError(
                f"the plan is {named!r}; expected the folder of an export whose plan {run.store.place} still has, or "
                f"one of its plans ({known or 'it has none'})"
            )
        return found
    if plan is None:
        raise InputError(f"no plan was published in {run.store.place}; expected a finished run: divorder run")
    for place, other in plans_in_place(run).items():
        if other != plan:
            raise InputError(
                f"{place} holds {name_of(other)}, but plan {plan.fingerprint} was published last: finish the "
                f"interrupted run (divorder run), or name the plan that is meant (--plan {place})"
            )
    return plan


def hold_plan(store: Store, plan: TrainingPlan) -> None:
    """Make a plan the published one, because a trainer holds it."""
    with store.lease(wait=True), changing(store) as state:
        others = [known for known in state.plans if known != plan]
        save_state(store, replace(state, plans=[*others, replace(plan, published=True)]))


def name_of(plan: TrainingPlan | None) -> str:
    return f"plan {plan.fingerprint}" if plan else "a plan that this store does not know"


def _plan_of(store: Store, key: str) -> TrainingPlan | None:
    """The plan of a manifest's key."""
    return next((plan for plan in reversed(load_state(store).plans) if key in plan.keys.values()), None)
