"""Starts runs automatically: a sensor on input files, a sensor on upstream assets, and a daily schedule, off by
default.

Together the two sensors start one run for one change. Neither starts a run while another run on the store is under
way; a change in the meantime starts one afterwards. The sensor on files waits until the upstream assets are made. The
sensor on assets ignores updates that the last run has read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import dagster as dg

from dagster_divorder.defs.jobs import BEGUN, CURATE, JOBS, store_names, store_tag
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.errors import StoreBusyError, printable
from dagster_divorder.pipeline.watch import Cursor, check_input
from dagster_divorder.settings import Settings
from dagster_divorder.stages.output.exports import KEEP_THE_ORDER
from dagster_divorder.store.base import Store
from dagster_divorder.store.connect import store_of

WHY = "divorder/why"
"""Tag of a run that a sensor started: the change that caused it."""

DAILY = "0 3 * * *"

SILENT_SECONDS = 60.0
"""A run is dead if its log has been silent for this long and no process holds the store."""

HELD_SECONDS = 5.0
"""A tick waits up to this long for a change to settle; a longer wait is left to the next tick. A waiting tick may block
the daemon's other sensors."""

SHORTEST_INTERVAL, LONGEST_INTERVAL = 4, 30
"""Seconds between two checks of the input. The daemon looks at its sensors every five seconds; if it looks a moment
early, a sensor with an interval of five misses that turn. The sensor also marks dead runs, so it must not wait long."""

_ENDED = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}
_UNDER_WAY = [status for status in dg.DagsterRunStatus if status not in _ENDED]


def condition(pipeline: Pipeline, asset: str) -> dg.AutomationCondition | None:
    """The condition under which Dagster makes an asset automatically: an upstream asset was updated, and the output
    needs the asset. None for all other assets."""
    if not pipeline.automation or not pipeline.upstream or asset not in pipeline.needed:
        return None
    followed = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.will_be_requested())
    if asset not in pipeline.upstream:
        return followed
    others = dg.AssetSelection.assets(*(dep.asset_key for dep in pipeline.upstream[asset]))
    updated = dg.AutomationCondition.any_deps_updated().allow(others)
    being_made = dg.AutomationCondition.any_deps_in_progress().allow(others)
    asked_for = updated.since(dg.AutomationCondition.newly_requested())
    return (asked_for & ~being_made & _Unread(pipeline, asset)) | followed


class _Unread(dg.AutomationCondition[dg.AssetKey]):
    """True if no run has read the last upstream update and no run on the store is under way."""

    def __init__(self, pipeline: Pipeline, asset: str) -> None:
        self.pipeline = pipeline
        self.upstream = [dep.asset_key for dep in pipeline.upstream[asset]]

    @property
    def name(self) -> str:
        return "no run has read the update, and none is under way"

    def evaluate(self, context: dg.AutomationContext[dg.AssetKey]) -> dg.AutomationResult[dg.AssetKey]:
        instance = context.asset_graph_view.instance
        unread = not _runs_on(instance, self.pipeline) and not self._is_read(instance, context.key)
        return dg.AutomationResult(
            context, context.candidate_subset if unread else context.get_empty_subset()
        )

    def _is_read(self, instance: dg.DagsterInstance, asset: dg.AssetKey) -> bool:
        made = instance.get_latest_materialization_event(asset)
        if made is None:
            return False
        starts = instance.get_records_for_run(made.run_id, of_type=dg.DagsterEventType.STEP_START).records
        begun = [start.timestamp for start in starts if start.event_log_entry.step_key == made.step_key]
        tags = (made.asset_materialization and made.asset_materialization.tags) or {}
        if BEGUN in tags:
            begun.append(float(tags[BEGUN]))
        entries = [record.asset_entry for record in instance.get_asset_records(self.upstream)]
        events = [
            event
            for entry in entries
            for event in (entry.last_materialization_record, entry.last_observation_record)
            if event
        ]
        return bool(begun) and all(event.timestamp < max(begun) for event in events)


def follow_upstream(pipeline: Pipeline) -> dg.AutomationConditionSensorDefinition:
    """The sensor that starts a run when an upstream asset is updated."""
    assets = [asset for asset in pipeline.specs if asset in pipeline.needed]
    return dg.AutomationConditionSensorDefinition(
        pipeline.named("follow_upstream"),
        target=dg.AssetSelection.assets(*map(pipeline.key, assets)),
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=LONGEST_INTERVAL,
        # Required for custom conditions.
        use_user_code_server=True,
        run_tags={
            WHY: "an upstream asset was updated",
            store_tag(pipeline): store_of(pipeline.settings.store).real_place,
        },
        description="Updates the output when an upstream asset is updated. Only what is new is computed.",
    )


def watch_input(pipeline: Pipeline) -> dg.SensorDefinition:
    """The sensor that starts `curate` when an input file is new, has grown or has changed."""

    graph, settings = pipeline.graph, pipeline.settings
    store, curate = store_of(settings.store), pipeline.named(CURATE)
    upstream = [dep.asset_key for dep in pipeline.upstream.get("raw_docs", ())]

    @dg.sensor(
        name=pipeline.named("watch_input"),
        job_name=curate,
        minimum_interval_seconds=int(
            min(max(SHORTEST_INTERVAL, settings.advanced.settle_seconds / 3), LONGEST_INTERVAL)
        ),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Starts {curate} when an input file is new or has changed, and has then not changed for "
        f"{settings.advanced.settle_seconds:g} s (advanced.settle_seconds). Only what is new is computed.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason | dg.SensorResult:
        runs = _our_runs(context, pipeline)
        repository = context.repository_def
        # If steps run in other processes or on other machines, the log of a live run may be silent for long.
        one_process = repository is None or repository.get_job(curate).executor_def is dg.in_process_executor
        if one_process and (dead := fail_dead_runs(context.instance, pipeline, runs)):
            return dg.SkipReason(f"run {', '.join(dead)} was found dead and is retried")

        def in_progress() -> str | None:
            return run_in_progress(_our_runs(context, pipeline)) or _being_made(context.instance, upstream)

        cursor = Cursor.from_json(context.cursor)
        verdict = check_input(graph, settings, cursor, time.time(), in_progress)
        if 0 < verdict.settling <= HELD_SECONDS:
            time.sleep(verdict.settling)
            verdict = check_input(graph, settings, verdict.cursor, time.time(), in_progress)
        if verdict.start and _in_use(store):
            return dg.SkipReason(
                "the store is in use, for example by `divorder run`; the next tick checks the input again"
            )
        if verdict.cursor != cursor:
            context.update_cursor(verdict.cursor.to_json())
        if not verdict.start:
            skip = dg.SkipReason(printable(verdict.reason))
            waits = verdict.cursor.waits not in (None, cursor.waits)
            return _asks(pipeline, skip) if waits and settings.exports.formats else skip
        return dg.RunRequest(tags={WHY: verdict.reason, store_tag(pipeline): store_names(store)[0]})

    return sensor


def _asks(pipeline: Pipeline, skip: dg.SkipReason) -> dg.SensorResult:
    """The answer of a tick when a change begins to wait for a choice about the exports: it also fails their check,
    because the page of an asset shows a failed check, but the reason of a sensor only after a click."""
    finding = dg.AssetCheckEvaluation(
        asset_key=pipeline.key("exports"),
        check_name=KEEP_THE_ORDER,
        passed=False,
        metadata={},
        severity=dg.AssetCheckSeverity.WARN,
        description=skip.skip_message,
    )
    return dg.SensorResult(skip_reason=skip, asset_events=[finding])


def _our_runs(context: dg.SensorEvaluationContext, pipeline: Pipeline) -> list[dg.DagsterRun]:
    """Runs under way on this store that belong to the sensor's code location, or to no location.

    A run that a sensor starts has the store's tag from the beginning, any other run once its first asset begins. Runs
    from a command line belong to no location.
    """
    here = context.code_location_origin
    return [
        run
        for run in _runs_on(context.instance, pipeline)
        if (origin := run.remote_job_origin) is None
        or (here and origin.repository_origin.code_location_origin.location_name == here.location_name)
    ]


def _runs_on(instance: dg.DagsterInstance, pipeline: Pipeline) -> Sequence[dg.DagsterRun]:
    """Runs under way that have the tag of a corpus's store."""
    tags = {store_tag(pipeline): store_names(store_of(pipeline.settings.store))}
    return instance.get_runs(dg.RunsFilter(statuses=_UNDER_WAY, tags=tags))


def _being_made(instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey]) -> str | None:
    """A message about the first of these assets that a run is about to make; None if there is none."""
    for asset in assets:
        planned = instance.get_latest_planned_materialization_info(asset)
        run = planned and instance.get_run_by_id(planned.run_id)
        if run and run.status in _UNDER_WAY:
            made = instance.get_latest_materialization_event(asset)
            if made is None or made.run_id != run.run_id:
                return f"run {run.run_id[:8]} makes {asset.to_user_string()}"
    return None


def run_in_progress(runs: Sequence[dg.DagsterRun]) -> str | None:
    """A message about the first run; None if there is none."""
    for run in runs:
        return f"run {run.run_id[:8]} ({run.job_name}) is {run.status.value.lower()}"
    return None


def fail_dead_runs(
    instance: dg.DagsterInstance, pipeline: Pipeline, runs: Sequence[dg.DagsterRun]
) -> list[str]:
    """Mark our dead runs as failed; returns their ids. Dagster then retries them (`run_retries`), and they block
    nothing.

    If only the process of a run is killed, Dagster does this itself. If Dagster dies too, for example with the machine,
    the run would stay STARTED for ever, and its input would wait for the next change.
    """
    dead = [
        run
        for run in runs
        if run.status == dg.DagsterRunStatus.STARTED
        and _runs_our_assets_alone(pipeline, run)
        and not _is_alive(instance, pipeline.settings, run.run_id)
    ]
    for run in dead:
        instance.report_run_failed(
            run, "The process of this run is gone: Dagster or the machine stopped while it ran."
        )
    return [run.run_id[:8] for run in dead]


def _runs_our_assets_alone(pipeline: Pipeline, run: dg.DagsterRun) -> bool:
    """Whether a run makes only our assets. Others may be silent for hours, and do not hold the store."""
    if run.asset_selection is None:
        return run.job_name in map(pipeline.named, JOBS)
    return run.asset_selection <= set(map(pipeline.key, pipeline.graph))


def _is_alive(instance: dg.DagsterInstance, settings: Settings, run_id: str) -> bool:
    last = instance.get_records_for_run(run_id, limit=1, ascending=False).records
    if last and time.time() - last[0].event_log_entry.timestamp < SILENT_SECONDS:
        return True
    return _in_use(store_of(settings.store))


def _in_use(store: Store) -> bool:
    """Whether a process holds the lease of a store."""
    try:
        with store.lease(wait=False):
            return False
    except StoreBusyError:
        return True


def daily(pipeline: Pipeline) -> dg.ScheduleDefinition:
    """The schedule that starts `curate` every night."""
    curate = pipeline.named(CURATE)
    return dg.ScheduleDefinition(
        name=pipeline.named("daily"),
        job_name=curate,
        cron_schedule=DAILY,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Runs {curate} every night at three o'clock (UTC), whether or not the input has changed: for "
        "input that never stops changing, or that the sensor should not read.",
    )
