"""The sensor and the schedule: which changes start a run, and that each starts one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.observe import observe
from dagster._core.test_utils import create_run_for_test

from dagster_divorder import build_definitions
from dagster_divorder.defs.sensor import HELD_SECONDS, SENSOR, Cursor
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import run_all, run_stage
from tests.conftest import topic_records, write_jsonl
from tests.defs.conftest import Daemon, make_corpus

Load = Callable[[], dg.Definitions]
EXPORTING = '[exports]\nformats = ["parquet"]\npath = "exports"\n'


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_divorder.defs.sensor.SETTLE_SECONDS", 0.0)


def at_once(config: Path, more: str = "") -> Settings:
    """Settings under which a change has settled at once."""
    config.write_text(config.read_text() + more)
    return load_settings(config)


@pytest.fixture
def settings(config: Path) -> Settings:
    return at_once(config)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def daemon(settings: Settings, instance: dg.DagsterInstance) -> Daemon:
    """It has seen the input."""
    daemon = Daemon(instance, settings)
    daemon.tick()
    return daemon


def append(config: Path) -> None:
    with open(config.parent / "docs.jsonl", "ab") as file:
        file.write(b'{"text": "one more"}\n')


def test_the_location_has_a_sensor_that_is_on_and_a_schedule_that_is_off(
    load: Load, settings: Settings
) -> None:
    repository = load().get_repository_def()
    (sensor,), (schedule,) = repository.sensor_defs, repository.schedule_defs
    # Instances keep cursors and states under these names.
    assert (sensor.name, schedule.name) == ("watch_input", "daily")
    assert (sensor.job_name, sensor.default_status) == ("curate", dg.DefaultSensorStatus.RUNNING)
    assert sensor.minimum_interval_seconds == 4
    assert (schedule.job_name, schedule.default_status) == ("curate", dg.DefaultScheduleStatus.STOPPED)
    (request,) = schedule.evaluate_tick(dg.build_schedule_context(repository_def=repository)).run_requests
    assert (schedule.cron_schedule, request.run_config) == ("0 3 * * *", {})


def test_without_automation_nothing_starts_by_itself(config: Path) -> None:
    defs = build_definitions(config, upstream={"raw_docs": ["docs"]}, automation=False)
    assert not defs.sensors and not defs.schedules


def test_the_first_run_is_the_users_and_every_change_after_it_starts_one(
    config: Path, settings: Settings, instance: dg.DagsterInstance
) -> None:
    daemon = Daemon(instance, settings)
    assert "materialise it once" in str(daemon.tick())
    run_stage("raw_docs", settings)
    assert daemon.tick() == "no change in 1 input file"
    append(config)
    assert daemon.starts()
    assert daemon.tick() == "no change in 1 input file"


def test_a_new_sensor_notices_what_was_appended_since_the_last_run(
    config: Path, settings: Settings, instance: dg.DagsterInstance
) -> None:
    run_stage("raw_docs", settings)
    assert Daemon(instance, settings).tick() == "no change in 1 input file since the last run"
    append(config)
    daemon = Daemon(instance, settings)
    assert [daemon.starts() for _ in range(3)] == [True, False, False]
    (settings.store.path / "state.json").write_bytes(b"{")
    assert Daemon(instance, settings).starts(), "a run mends the damage"


def test_a_change_after_a_request_starts_another_run_and_so_does_one_that_is_undone(
    config: Path, daemon: Daemon
) -> None:
    file = config.parent / "docs.jsonl"
    before, times, keys = file.read_bytes(), os.stat(file), []
    for content in (before + b'{"text": "a"}\n', before, before + b'{"text": "a"}\n'):
        # As by a tool that keeps times: only the change time is another.
        file.write_bytes(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        request = daemon.tick()
        assert isinstance(request, dg.RunRequest)
        keys.append(request.run_key)
    assert len(set(keys)) == 3


def test_new_and_vanished_files_start_a_run_each_and_empty_ones_none(tmp_path: Path) -> None:
    config = make_corpus(tmp_path)
    config.write_text(config.read_text().replace("docs.jsonl", "in"))
    write_jsonl(tmp_path / "in/a.jsonl", topic_records(1))
    daemon = Daemon(dg.DagsterInstance.ephemeral(), at_once(config))
    daemon.tick()
    (tmp_path / "in/empty.jsonl").touch()
    assert not daemon.starts()
    write_jsonl(tmp_path / "in/b.jsonl", topic_records(1))
    assert daemon.starts()
    (tmp_path / "in/b.jsonl").unlink()
    assert daemon.starts()
    (tmp_path / "in/empty.jsonl").unlink()
    (tmp_path / "in/a.jsonl").unlink()
    assert "A run starts once there is input." in str(daemon.tick())
    write_jsonl(tmp_path / "in/c.jsonl", topic_records(1))
    assert daemon.starts()


def test_a_run_starts_only_once_the_input_is_still(
    config: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1e9
    monkeypatch.setattr("dagster_divorder.defs.sensor.time.time", lambda: now)
    daemon = Daemon(instance, load_settings(config))
    daemon.tick()
    for _ in range(3):
        append(config)
        now += 10
        assert "once nothing has changed for 10 s" in str(daemon.tick())
    now += 9
    assert not daemon.starts()
    # A clock that is set back delays a run by no more than a change does.
    now -= 86_400
    assert not daemon.starts()
    now += 10
    assert daemon.starts()


@pytest.mark.parametrize(("settle", "slept"), [(2.0, [2.0]), (HELD_SECONDS + 1, [])])
def test_a_tick_waits_for_a_change_that_settles_soon(
    settings: Settings,
    config: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    settle: float,
    slept: list[float],
) -> None:
    monkeypatch.setattr("dagster_divorder.defs.sensor.SETTLE_SECONDS", settle)
    daemon = Daemon(instance, settings)
    daemon.tick()
    append(config)
    waited: list[float] = []
    clock = SimpleNamespace(time=lambda: 1e9 + sum(waited), sleep=waited.append)
    monkeypatch.setattr("dagster_divorder.defs.sensor.time", clock)
    assert (daemon.starts(), waited) == (bool(slept), slept)


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.CANCELING])
def test_while_a_run_of_the_sensor_is_under_way_no_other_is_asked_for(
    config: Path, daemon: Daemon, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    append(config)
    # Runs of others do not count.
    create_run_for_test(instance, job_name="curate", status=status)
    create_run_for_test(instance, job_name="wiki_curate", status=status, tags={SENSOR: "wiki_watch_input"})
    run = create_run_for_test(instance, job_name="curate", status=status, tags={SENSOR: "watch_input"})
    assert f"run {run.run_id[:8]} (curate) is {status.value.lower()}" in str(daemon.tick())
    instance.delete_run(run.run_id)
    assert daemon.starts()


@pytest.mark.parametrize("text", ["{", "[]", '{"seen": 5}', '{"since": null}', "7"])
def test_a_cursor_of_another_kind_is_a_new_one(text: str) -> None:
    assert Cursor.of(text) == Cursor()


def test_an_export_is_not_put_into_another_order_unasked(config: Path, instance: dg.DagsterInstance) -> None:
    settings = at_once(config, EXPORTING)
    daemon = Daemon(instance, settings)
    daemon.tick()
    run_all(settings)
    append(config)
    assert "no run starts yet: order.frozen_tokens is unset" in str(daemon.tick())
    for chosen in ({"frozen_tokens": 0}, {"append": "extend"}):
        order = settings.order.model_copy(update=chosen)
        told = Daemon(instance, settings.model_copy(update={"order": order}))
        told.cursor = daemon.cursor
        assert told.starts()


# Assets upstream -----------------------------------------------------------------------------------------------------


class Project:
    """A project whose asset `docs` writes the corpus of a prefix, with ticks of the corpus's sensor."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, more: str = "") -> None:
        config, self.instance, self.written = make_corpus(folder), instance, 0
        write_jsonl(folder / "in/first.jsonl", topic_records(2))
        config.write_text(config.read_text().replace("docs.jsonl", "in"))
        self.settings = at_once(config, more)

        @dg.asset
        def docs() -> None:
            self.written += 1
            write_jsonl(folder / f"in/{self.written}.jsonl", topic_records(1, start=100 * self.written))

        self.docs = docs
        corpus = build_definitions(config, key_prefix="news", upstream={"raw_docs": docs})
        self.defs = dg.Definitions.merge(
            corpus, dg.Definitions(assets=[docs], executor=dg.in_process_executor)
        )
        self.daemon = Daemon(
            instance, self.settings, key_prefix=("news",), upstream={"raw_docs": [dg.AssetDep(docs)]}
        )
        self.daemon.tick()

    def update(self) -> None:
        """Materialise `docs` in a run of its own."""
        assert dg.materialize([self.docs], instance=self.instance).success


@pytest.fixture
def news(tmp_path: Path, instance: dg.DagsterInstance) -> Project:
    return Project(tmp_path, instance)


def test_every_update_upstream_starts_one_run(news: Project) -> None:
    for _ in range(2):
        news.update()
        assert [news.daemon.starts() for _ in range(3)] == [True, False, False]
    # Right after a request, and before the run has read anything.
    news.update()
    assert news.daemon.starts()
    news.update()
    assert news.daemon.starts()


def test_an_update_without_a_new_file_starts_a_run(news: Project) -> None:
    news.instance.report_runless_asset_event(dg.AssetMaterialization("docs"))
    assert [news.daemon.starts() for _ in range(2)] == [True, False]


def test_the_sensor_waits_for_an_asset_that_is_being_made(news: Project, tmp_path: Path) -> None:
    job = news.defs.get_repository_def().get_job("__ASSET_JOB").get_subset(asset_selection={news.docs.key})
    run = news.instance.create_run_for_job(job, asset_selection=frozenset({news.docs.key}))
    write_jsonl(tmp_path / "in/half.jsonl", topic_records(1, start=7))
    assert "with docs; the input is checked again" in str(news.daemon.tick())
    news.instance.report_run_failed(run)
    assert news.daemon.starts()


@pytest.mark.parametrize("exporting", ["", EXPORTING], ids=["no export", "an export"])
def test_an_observed_source_starts_a_run_when_its_version_changes(
    tmp_path: Path, instance: dg.DagsterInstance, exporting: str
) -> None:
    version = "1"

    @dg.observable_source_asset(key=["lake", "docs"])
    def lake() -> dg.DataVersion:
        return dg.DataVersion(version)

    settings = at_once(make_corpus(tmp_path), exporting)
    upstream = {"raw_docs": [dg.AssetDep(lake.key)]}
    daemon = Daemon(instance, settings, upstream=upstream)
    observe([lake], instance=instance)
    daemon.tick()
    if exporting:
        run_all(settings)
    observe([lake], instance=instance)
    assert not daemon.starts()
    version = "2"
    observe([lake], instance=instance)
    assert daemon.starts() != bool(exporting)
    assert not daemon.starts()


def test_two_corpora_have_sensors_of_their_own(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    configs = {prefix: make_corpus(tmp_path / prefix) for prefix in ("news", "wiki")}
    daemons: dict[str, Any] = {
        prefix: Daemon(instance, at_once(config), key_prefix=(prefix,)) for prefix, config in configs.items()
    }
    for daemon in daemons.values():
        daemon.tick()
    append(configs["news"])
    assert [daemons[prefix].starts() for prefix in configs] == [True, False]
