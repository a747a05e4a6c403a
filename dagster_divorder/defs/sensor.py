"""Starts runs: a sensor on the input files and on the assets upstream, and a daily schedule.

A tick of the sensor hashes the listing of the input (paths, sizes, times; tags at URLs) and the data versions of the
assets upstream. Another hash than the last answered one starts a run once two ticks in a row see it, no asset upstream
is being made, and no run of this sensor is under way. So one change starts one run, whether it succeeds or not, and a
change after a request starts another. docs/decisions/dagster-projects.md says why automation conditions do not serve.
Known weakness: a file that was touched, or that a run by hand has read, starts a run with nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import orjson
import xxhash

from dagster_divorder.corpus.find import find_inputs
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.errors import DivOrderError, InputError, MissingStageError, printable
from dagster_divorder.settings import Settings
from dagster_divorder.stages import open_run
from dagster_divorder.store.objects import store_at
from dagster_divorder.store.sources import identity
from dagster_divorder.store.stages import Reader
from dagster_divorder.store.state import load_state
from dagster_divorder.view.words import count

CURATE, REPORT = "curate", "report"
"""The jobs that the sensor and the schedule start; before the prefix."""
WATCH_INPUT = "watch_input"
INTERVAL = 4
"""Seconds between two ticks. The daemon looks at its sensors every five seconds; if it looks a moment early, a sensor
with an interval of five misses that turn."""
UNDER_WAY = [one for one in dg.DagsterRunStatus if one.value not in ("SUCCESS", "FAILURE", "CANCELED")]


def watch_input(pipeline: Pipeline) -> dg.SensorDefinition:
    """The sensor that starts `curate` when the input or an asset upstream has changed."""
    settings, curate = pipeline.settings, pipeline.named(CURATE)

    @dg.sensor(
        name=pipeline.named(WATCH_INPUT),
        job_name=curate,
        minimum_interval_seconds=INTERVAL,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Starts {curate} when an input file is new or has changed, or an upstream asset was updated, and "
        "the next look finds no other change. Only what is new is computed.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        # The cursor: hash of the state that the last answer was about, and of the one that the last tick has seen.
        answered, _, noticed = (context.cursor or "").partition(" ")
        try:
            files = _listing(settings)
        except InputError as error:
            return dg.SkipReason(printable(f"{error}. A run starts once there is input."))
        versions = [(key.path, _data_version(context.instance, key)) for key in pipeline.others]
        state = _hash([[*files.items()], versions])
        counted = count(len(files), "input file")
        if state == answered:
            return dg.SkipReason(f"no change in {counted}")
        if not answered and (read := _has_read(settings, files)) is not False:
            context.update_cursor(state)
            first = "nothing was made of this input yet: materialise it once; from then on every change starts a run"
            return dg.SkipReason(f"no change in {counted} since the last run" if read else first)
        if state != noticed:
            context.update_cursor(f"{answered} {state}")
            return dg.SkipReason(f"changed: {counted}; a run starts if the next look finds no other change")
        if run := _run_under_way(context.instance, pipeline):
            return dg.SkipReason(f"the input is checked again after run {run.run_id[:8]} ({run.job_name})")
        context.update_cursor(state)
        # With the last key, because a state may return, when a file that was added is removed.
        return dg.RunRequest(run_key=_hash([state, context.last_run_key]))

    return sensor


def _hash(value: Any) -> str:
    return xxhash.xxh3_128_hexdigest(orjson.dumps(value))


def _listing(settings: Settings) -> Mapping[str, tuple[int | str, ...]]:
    """Input file that is not empty -> its identity, which begins with its size. InputError if there is no input."""
    files = {str(file): identity(file) for group in find_inputs(settings) for file in group.files}
    return {file: known_by for file, known_by in files.items() if known_by[0]}


def _has_read(settings: Settings, files: Mapping[str, tuple[int | str, ...]]) -> bool | None:
    """Whether the last run on the store has read these files, by their sizes; None if there was no run."""
    try:
        view = Reader(store_at(settings.store.path).open(create=False)).view
    except MissingStageError:
        return None
    except DivOrderError:  # the next run says what is damaged
        return False
    sizes = {file: known_by[0] for file, known_by in files.items()}
    return {file.path: file.size for file in view.files if file.size} == sizes


def _data_version(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """The data version of the last update of an asset, or of the last observation of a source."""
    last = instance.get_latest_data_version_record(key)
    event = last and (last.asset_materialization or last.asset_observation)
    return ((event and event.tags) or {}).get("dagster/data_version", str(last.timestamp)) if last else None


def _run_under_way(instance: dg.DagsterInstance, pipeline: Pipeline) -> dg.DagsterRun | None:
    """A run of the sensor, or one that makes an asset upstream. Dagster's run monitoring ends those that died."""
    tags = {"dagster/sensor_name": pipeline.named(WATCH_INPUT)}
    filters = dg.RunsFilter(job_name=pipeline.named(CURATE), statuses=UNDER_WAY, tags=tags)
    making = [record.asset_entry.last_run_id for record in instance.get_asset_records(pipeline.others)]
    runs = [*instance.get_runs(filters, limit=1), *(instance.get_run_by_id(run) for run in making if run)]
    return next((run for run in runs if run and run.status in UNDER_WAY), None)


def daily(pipeline: Pipeline, assets: Sequence[str]) -> dg.ScheduleDefinition:
    """The schedule that brings up to date what was made before of the assets of `report`: evidence, for which no append
    has to wait, and all that it needs."""
    settings, graph = pipeline.settings, pipeline.graph

    @dg.schedule(
        name=pipeline.named("daily"),
        cron_schedule="0 3 * * *",
        job_name=pipeline.named(REPORT),
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Every night at three o'clock (UTC), brings up to date what was made under these settings, with "
        "the evidence and reports that the sensor leaves as they are. No run starts where nothing is new.",
    )
    def schedule() -> dg.RunRequest | dg.SkipReason:
        try:
            run, files = open_run(settings), _listing(settings)
        except DivOrderError as error:
            return dg.SkipReason(printable(str(error)))
        receipts = load_state(run.store).receipts.values()
        same = {one.stage for one in receipts if one.fingerprint == graph[one.stage].fingerprint(settings)}
        made = [name for name in assets if same.issuperset(graph.needed(settings, name))]
        if not made:
            return dg.SkipReason("nothing was made under these settings yet")
        if _has_read(settings, files) and all(map(run.is_current, made)):
            return dg.SkipReason(f"up to date: {', '.join(made)}")
        wanted = graph.needed(settings, *made)
        return dg.RunRequest(asset_selection=[pipeline.key(name) for name in assets if name in wanted])

    return schedule
