"""Starts runs: a sensor on the input files and on the assets upstream, and a nightly schedule, off by default.

A tick hashes the listing of the input (paths, sizes, times; tags at URLs) and the data versions of the assets
upstream. Another hash than the last answered one starts a run once it has stayed the same for
SETTLE_SECONDS, no asset upstream is being made, and no run of this sensor is under way. So one change starts
one run, whether it succeeds or not, and a change after a request starts another. The cursor holds the answered hash.

If a run may change rows that a trainer has read (`reordered.choice`), the change waits until `order.frozen_tokens` is
set; the reason of the tick says so. Known weakness: a file that was touched, or that a run by hand has read, starts a
run with nothing to do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import dagster as dg
import orjson
import xxhash
from pydantic import BaseModel, ValidationError

from dagster_divorder.corpus.find import find_inputs
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.errors import DivOrderError, InputError, printable
from dagster_divorder.pipeline.reordered import choice
from dagster_divorder.settings import Settings
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.sources import identity
from dagster_divorder.store.state import load_receipt
from dagster_divorder.store.view import View
from dagster_divorder.view.words import count

CURATE, WATCH_INPUT = "curate", "watch_input"
"""The job that the sensor and the schedule start, and the sensor; before the prefix."""

INTERVAL = 4
"""Seconds between two ticks. The daemon looks at its sensors every five seconds; if it looks a moment early, a sensor
with an interval of five misses that turn."""

SETTLE_SECONDS = 10.0
"""A run starts once a changed input file has been still for so long, so that few runs read half-written files."""

HELD_SECONDS = 5.0
"""A tick waits up to this long for a change to settle; a longer wait is left to the next tick."""

SENSOR = "dagster/sensor_name"
"""Tag that Dagster gives to the runs of a sensor."""

ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNDER_WAY = [status for status in dg.DagsterRunStatus if status not in ENDED]


class Cursor(BaseModel):
    """answered: hash of the state that the last answer was about. noticed, since: a later hash, and when it was first
    seen, in seconds since 1970. requests: number of runs asked for, so that every request has a key of its own."""

    answered: str | None = None
    noticed: str | None = None
    since: float = 0.0
    requests: int = 0

    @classmethod
    def of(cls, text: str | None) -> Cursor:
        """A cursor from its JSON; a new one if there is none, or if another version wrote it."""
        try:
            return cls.model_validate_json(text) if text else cls()
        except ValidationError:
            return cls()


def watch_input(pipeline: Pipeline) -> dg.SensorDefinition:
    """The sensor that starts `curate` when the input or an asset upstream has changed."""
    curate = pipeline.named(CURATE)

    @dg.sensor(
        name=pipeline.named(WATCH_INPUT),
        job_name=curate,
        minimum_interval_seconds=INTERVAL,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Starts {curate} when an input file is new or has changed, or an upstream asset was updated, and "
        f"nothing has changed for {SETTLE_SECONDS:g} s after it. Only what is new is computed.",
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        before = Cursor.of(context.cursor)
        cursor, reason, settling = _check(pipeline, context.instance, before)
        if 0 < settling <= HELD_SECONDS:
            time.sleep(settling)
            cursor, reason, _ = _check(pipeline, context.instance, cursor)
        if cursor != before:
            context.update_cursor(cursor.model_dump_json())
        if reason:
            return dg.SkipReason(printable(reason))
        return dg.RunRequest(run_key=f"{cursor.answered}-{cursor.requests}")

    return sensor


def _check(pipeline: Pipeline, instance: dg.DagsterInstance, cursor: Cursor) -> tuple[Cursor, str, float]:
    """(what to remember; why no run starts, "" if one does; seconds until a change has settled)."""
    settings, now = pipeline.settings, time.time()
    try:
        files = _listing(settings)
    except InputError as error:
        return cursor, f"{error}. A run starts once there is input.", 0.0
    upstream = sorted({dep.asset_key for deps in pipeline.upstream.values() for dep in deps})
    versions = [(key.path, _data_version(instance, key)) for key in upstream]
    state = xxhash.xxh3_128_hexdigest(orjson.dumps([files, versions]))
    counted, answered = count(len(files), "input file"), cursor.model_copy(update={"answered": state})
    if state == cursor.answered:
        return cursor, f"no change in {counted}", 0.0
    if cursor.answered is None:
        read = _sizes_read(settings)
        if read is None:
            reason = (
                f"nothing was made of this input yet ({counted}): materialise it once (Materialize all, or the job "
                f"{pipeline.named(CURATE)}); from then on every change starts a run"
            )
            return answered, reason, 0.0
        if read == {path: known_by[0] for path, known_by in files}:
            return answered, f"no change in {counted} since the last run", 0.0
    if state != cursor.noticed or now < cursor.since:
        cursor = cursor.model_copy(update={"noticed": state, "since": now})
    settling = cursor.since + SETTLE_SECONDS - now
    if settling > 0:
        wait = f"a run starts once nothing has changed for {SETTLE_SECONDS:g} s"
        return cursor, f"changed: {counted}; {wait}", settling
    if busy := _run_under_way(instance, pipeline) or _being_made(instance, upstream):
        return cursor, f"{busy}; the input is checked again after that run", 0.0
    if asked := _asked_first(settings):
        reason = f"changed: {counted}; no run starts yet: {asked}; then reload the code location"
        return cursor, reason, 0.0
    return Cursor(answered=state, requests=cursor.requests + 1), "", 0.0


def _listing(settings: Settings) -> list[tuple[str, tuple[int | str, ...]]]:
    """(path, identity) of every input file that is not empty.

    Raises:
        InputError: there is no input, or a file cannot be accessed.
    """
    try:
        files = [(file, identity(file)) for group in find_inputs(settings) for file in group.files]
    except OSError as error:
        raise InputError(f"{error.filename} cannot be accessed: {error.strerror}") from None
    return [(str(file), known_by) for file, known_by in files if known_by[0]]


def _sizes_read(settings: Settings) -> dict[str, int] | None:
    """The bytes that the last run on the store has read of each file; None if there was no run."""
    try:
        store = store_of(settings.store).open(create=False)
        receipt = load_receipt(store, "raw_docs")
        view = View.load(store, receipt.files["view"]) if receipt else None
    except DivOrderError:  # the next run mends the damage
        return {}
    return None if view is None else {file.path: file.size for file in view.files if file.size}


def _data_version(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """The data version of the last update of an asset, or of the last observation of a source."""
    records = [
        *instance.fetch_materializations(key, limit=1).records,
        *instance.fetch_observations(key, limit=1).records,
    ]
    if not records:
        return None
    last = max(records, key=lambda record: record.timestamp)
    event = last.asset_materialization or last.asset_observation
    return ((event and event.tags) or {}).get("dagster/data_version", str(last.timestamp))


def _run_under_way(instance: dg.DagsterInstance, pipeline: Pipeline) -> str:
    """A message about a run of the sensor; "" if there is none. Dagster's run monitoring ends those that died."""
    tags = {SENSOR: pipeline.named(WATCH_INPUT)}
    filters = dg.RunsFilter(job_name=pipeline.named(CURATE), statuses=UNDER_WAY, tags=tags)
    records = instance.get_run_records(filters, limit=1)
    return _about(records[0].dagster_run) if records else ""


def _being_made(instance: dg.DagsterInstance, assets: Iterable[dg.AssetKey]) -> str:
    """A message about a run that makes one of these assets; "" if there is none."""
    for record in instance.get_asset_records([*assets]):
        run = instance.get_run_by_id(record.asset_entry.last_run_id or "")
        if run and run.status in UNDER_WAY:
            return f"{_about(run)}, with {record.asset_entry.asset_key.to_user_string()}"
    return ""


def _about(run: dg.DagsterRun) -> str:
    return f"run {run.run_id[:8]} ({run.job_name}) is {run.status.value.lower()}"


def _asked_first(settings: Settings) -> str:
    """What to set before a run; "" if nothing."""
    try:
        return choice(settings)
    except DivOrderError:  # a run reports the error
        return ""


def daily(pipeline: Pipeline) -> dg.ScheduleDefinition:
    """The schedule that starts `curate` every night."""
    curate = pipeline.named(CURATE)
    return dg.ScheduleDefinition(
        name=pipeline.named("daily"),
        job_name=curate,
        cron_schedule="0 3 * * *",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Runs {curate} every night at three o'clock (UTC), whether or not the input has changed: for "
        "input that never stops changing, or that the sensor should not read.",
    )
