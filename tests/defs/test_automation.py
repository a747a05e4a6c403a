"""The sensor and the schedule: which run they start, and that they start none while one is under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_divorder import build_definitions
from dagster_divorder.defs.automation import HELD_SECONDS, SILENT_SECONDS, WHY, watch_input
from dagster_divorder.defs.jobs import STORE, store_names, store_tag
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.local import LocalStore
from tests.conftest import topic_records, write_jsonl
from tests.defs.conftest import execute, make_corpus

Load = Callable[[], dg.Definitions]


@pytest.fixture
def settings(config: Path) -> Settings:
    at_once = "[advanced]\nsettle_seconds = 0\n"
    config.write_text(config.read_text().replace("[advanced]\n", at_once))
    return load_settings(config)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


class Daemon:
    """Ticks of the sensor, which remembers its cursor."""

    def __init__(self, settings: Settings, instance: dg.DagsterInstance) -> None:
        self.sensor, self.instance, self.cursor = watch_input(Pipeline(GRAPH, settings)), instance, None

    def tick(self) -> dg.RunRequest | str:
        """The run that a tick asks for, or why it asks for none."""
        context = dg.build_sensor_context(instance=self.instance, cursor=self.cursor)
        result = self.sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return result.run_requests[0] if result.run_requests else str(result.skip_message)


def tags_of(settings: Settings, prefix: str = "") -> dict[str, str]:
    """The tags of a run on the store of these settings."""
    tag = store_tag(Pipeline(GRAPH, settings, key_prefix=(prefix,) if prefix else ()))
    return {tag: store_names(LocalStore(settings.store.path))[0]}


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
    assert schedule.cron_schedule == "0 3 * * *"


def test_the_schedule_asks_for_one_run(load: Load, instance: dg.DagsterInstance) -> None:
    repository = load().get_repository_def()
    context = dg.build_schedule_context(instance=instance, repository_def=repository)
    (schedule,) = repository.schedule_defs
    (request,) = schedule.evaluate_tick(context).run_requests or []
    assert request.run_config == {}


def test_after_a_run_that_came_to_its_end_no_tick_asks_for_another(
    load: Load, settings: Settings, config: Path, instance: dg.DagsterInstance
) -> None:
    """Whether the daemon is new, goes on, or starts again with a cursor of another kind; and after a further run."""
    definitions, daemon = load(), Daemon(settings, instance)
    selection = [name for name in GRAPH.needed(settings) if GRAPH[name].asset]
    for _ in range(2):
        execute(definitions, instance, *selection)
        for cursor in (None, "{}", '{"seen": 5}', "another kind"):
            daemon.cursor = cursor
            assert daemon.tick() == "no change in 1 input file since the last run"
            assert daemon.tick() == "no change in 1 input file"
        append(config)
        request = daemon.tick()
        assert isinstance(request, dg.RunRequest) and request.tags[WHY] == "docs.jsonl has 21 bytes more"
    # A run of other settings came to its end too.
    execute(definitions, instance, *selection)
    other = settings.model_copy(update={"seed": settings.seed + 1})
    request = Daemon(other, instance).tick()
    assert isinstance(request, dg.RunRequest)
    assert request.tags[WHY] == "the last run had other settings, or another version of DivOrder"


def test_appended_lines_ask_for_one_run_and_say_why(
    settings: Settings, config: Path, instance: dg.DagsterInstance
) -> None:
    daemon = Daemon(settings, instance)
    assert "materialise it once" in str(daemon.tick())
    append(config)
    request = daemon.tick()
    assert isinstance(request, dg.RunRequest)
    assert request.run_key is None
    assert request.tags[WHY].startswith("docs.jsonl")
    assert request.tags.items() >= tags_of(settings).items()
    # Another daemon goes on from the same cursor.
    other = Daemon(settings, instance)
    other.cursor = daemon.cursor
    assert other.tick() == "no change in 1 input file"


@pytest.mark.parametrize(("settle", "slept"), [(2.0, [2.0]), (HELD_SECONDS + 1, [])])
def test_a_tick_waits_for_a_change_that_settles_soon(
    settings: Settings,
    config: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    settle: float,
    slept: list[float],
) -> None:
    advanced = settings.advanced.model_copy(update={"settle_seconds": settle})
    daemon = Daemon(settings.model_copy(update={"advanced": advanced}), instance)
    daemon.tick()
    append(config)
    waited: list[float] = []
    clock = SimpleNamespace(time=lambda: 1e9 + sum(waited), sleep=waited.append)
    monkeypatch.setattr("dagster_divorder.defs.automation.time", clock)
    result = daemon.tick()
    assert waited == slept
    assert isinstance(result, dg.RunRequest) == bool(slept)


@pytest.mark.parametrize("job", ["curate", "report", "__ASSET_JOB"])
@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.CANCELING])
def test_while_a_run_is_under_way_no_other_is_asked_for(
    settings: Settings, config: Path, instance: dg.DagsterInstance, job: str, status: dg.DagsterRunStatus
) -> None:
    daemon = Daemon(settings, instance)
    daemon.tick()
    append(config)
    run = create_run_for_test(instance, job_name=job, status=status, tags=tags_of(settings))
    before = daemon.cursor
    said = str(daemon.tick())
    assert f"run {run.run_id[:8]} ({job}) is {status.value.lower()}" in said
    assert daemon.cursor == before
    instance.delete_run(run.run_id)
    assert isinstance(daemon.tick(), dg.RunRequest)


OTHERS: dict[str, dict[str, Any]] = {
    "another code location's": {"job_name": "theirs"},
    "picked by hand elsewhere": {"job_name": "__ASSET_JOB"},
    "of a neighbour with another store": {"job_name": "curate", "tags": {STORE: "another"}},
}


@pytest.mark.parametrize("run", OTHERS.values(), ids=OTHERS)
def test_runs_of_others_do_not_count_and_are_left_alone(
    settings: Settings,
    config: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    run: dict[str, Any],
) -> None:
    daemon = Daemon(settings, instance)
    daemon.tick()
    append(config)
    theirs = create_run_for_test(instance, status=dg.DagsterRunStatus.STARTED, **run)
    instance.report_engine_event("alive", theirs)
    later = time.time() + SILENT_SECONDS + 1
    monkeypatch.setattr("dagster_divorder.defs.automation.time.time", lambda: later)
    assert isinstance(daemon.tick(), dg.RunRequest)
    assert status_of(instance, theirs) == dg.DagsterRunStatus.STARTED


def status_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    kept = instance.get_run_by_id(run.run_id)
    assert kept
    return kept.status


def test_a_run_of_ours_and_of_others_assets_counts_but_is_left_alone(
    settings: Settings, config: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training beside curated_output is silent for hours and holds no store."""
    daemon = Daemon(settings, instance)
    daemon.tick()
    append(config)
    keys = frozenset({dg.AssetKey("curated_output"), dg.AssetKey("training")})
    mixed, ours = (
        create_run_for_test(
            instance,
            job_name="__ASSET_JOB",
            status=dg.DagsterRunStatus.STARTED,
            asset_selection=selection,
            tags=tags_of(settings),
        )
        for selection in (keys, keys - {dg.AssetKey("training")})
    )
    later = time.time() + SILENT_SECONDS + 1
    monkeypatch.setattr("dagster_divorder.defs.automation.time.time", lambda: later)
    assert str(daemon.tick()).startswith(f"run {ours.run_id[:8]} was found dead")
    assert f"run {mixed.run_id[:8]} (__ASSET_JOB) is started" in str(daemon.tick())
    assert status_of(instance, mixed) == dg.DagsterRunStatus.STARTED


def test_a_run_tags_itself_with_its_store_whoever_started_it(
    load: Load, settings: Settings, instance: dg.DagsterInstance
) -> None:
    run = execute(load(), instance, "raw_docs")
    kept = instance.get_run_by_id(run.run_id)
    assert kept and kept.tags[STORE] in store_names(LocalStore(settings.store.path))


@pytest.mark.parametrize("holds_the_store", [True, False])
def test_a_run_whose_process_was_killed_is_said_to_have_failed(
    settings: Settings,
    config: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    holds_the_store: bool,
) -> None:
    daemon = Daemon(settings, instance)
    daemon.tick()
    append(config)
    run, theirs = (
        create_run_for_test(instance, job_name="curate", status=dg.DagsterRunStatus.STARTED, tags=tags)
        for tags in (tags_of(settings), {})
    )
    instance.report_engine_event("alive", run)
    assert "is started" in str(daemon.tick())
    # It is silent from then on.
    later = time.time() + SILENT_SECONDS + 1
    monkeypatch.setattr("dagster_divorder.defs.automation.time.time", lambda: later)
    with LocalStore(settings.store.path).lease() if holds_the_store else nullcontext():
        said = str(daemon.tick())
        assert ("found dead" in said) != holds_the_store
        assert isinstance(daemon.tick(), dg.RunRequest) != holds_the_store
    statuses = [status_of(instance, one) for one in (run, theirs)]
    dead = dg.DagsterRunStatus.STARTED if holds_the_store else dg.DagsterRunStatus.FAILURE
    assert statuses == [dead, dg.DagsterRunStatus.STARTED]


# Assets upstream -----------------------------------------------------------------------------------------------------


class Project:
    """A project whose asset `docs` writes the corpus of a prefix, with ticks of that corpus's two sensors."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        self.folder, self.instance = folder, instance
        config = make_corpus(folder)
        self.written, written = 0, folder / "in"
        write_jsonl(written / "first.jsonl", topic_records(2))
        config.write_text(
            config.read_text()
            .replace("docs.jsonl", "in")
            .replace("[advanced]\n", "[advanced]\nsettle_seconds = 0\n")
        )

        @dg.asset
        def docs() -> None:
            self.written += 1
            write_jsonl(written / f"{self.written}.jsonl", topic_records(1, start=100 * self.written))

        self.docs, self.settings = docs, load_settings(config)
        corpus = build_definitions(config, key_prefix="news", upstream={"raw_docs": docs})
        self.defs = dg.Definitions.merge(
            corpus, dg.Definitions(assets=[docs], executor=dg.in_process_executor)
        )
        self.cursors: dict[str, str | None] = {}

    def update(self) -> None:
        """Materialise `docs` in a run of its own."""
        assert dg.materialize([self.docs], instance=self.instance).success

    def run(self, *assets: str) -> Any:
        return execute(self.defs, self.instance, *(["news", asset] for asset in assets))  # type: ignore[arg-type]

    def tick(self, sensor: str = "news_follow_upstream") -> dg.RunRequest | None:
        """The run that a tick asks for."""
        repository = self.defs.get_repository_def()
        context = dg.build_sensor_context(
            instance=self.instance, repository_def=repository, cursor=self.cursors.get(sensor)
        )
        result = repository.get_sensor_def(sensor).evaluate_tick(context)
        self.cursors[sensor] = result.cursor
        return result.run_requests[0] if result.run_requests else None


@pytest.fixture
def news(tmp_path: Path, instance: dg.DagsterInstance) -> Project:
    project = Project(tmp_path, instance)
    assert project.tick() is None
    return project


def test_an_update_upstream_starts_one_run_of_all_that_the_output_needs(news: Project) -> None:
    news.update()
    request = news.tick()
    assert request and request.asset_selection
    curate = news.defs.resolve_job_def("news_curate").asset_layer.executable_asset_keys
    assert set(request.asset_selection) == set(curate)
    assert request.tags[WHY] == "an upstream asset was updated"
    assert request.tags.items() >= tags_of(news.settings, "news").items()
    for _ in range(2):
        assert news.tick() is None
    news.update()
    assert news.tick()


def test_the_two_sensors_start_one_run_for_one_change(news: Project) -> None:
    news.run("raw_docs")
    news.tick("news_watch_input")
    # The sensor on upstream assets is first: the run that it asks for is known to the other one.
    news.update()
    request = news.tick()
    assert request
    run = create_run_for_test(news.instance, status=dg.DagsterRunStatus.NOT_STARTED, tags=dict(request.tags))
    assert news.tick("news_watch_input") is None
    news.instance.delete_run(run.run_id)
    # The sensor on files is first: its run has read the update.
    request = news.tick("news_watch_input")
    assert request
    news.update()
    run = create_run_for_test(news.instance, status=dg.DagsterRunStatus.STARTED, tags=dict(request.tags))
    assert news.tick() is None
    news.run("raw_docs")
    news.instance.delete_run(run.run_id)
    assert news.tick() is None


def test_the_sensor_on_files_waits_for_an_asset_that_is_being_made(news: Project) -> None:
    news.run("raw_docs")
    news.tick("news_watch_input")
    job = news.defs.get_repository_def().get_job("__ASSET_JOB").get_subset(asset_selection={news.docs.key})
    run = news.instance.create_run_for_job(job, asset_selection=frozenset({news.docs.key}))
    write_jsonl(news.folder / "in/half.jsonl", topic_records(1, start=7))
    assert news.tick("news_watch_input") is None
    news.instance.report_run_failed(run)
    request = news.tick("news_watch_input")
    assert request and "half.jsonl is new" in request.tags[WHY]


def test_an_update_while_a_run_is_under_way_is_answered_after_it(news: Project) -> None:
    run = create_run_for_test(
        news.instance, status=dg.DagsterRunStatus.STARTED, tags=tags_of(news.settings, "news")
    )
    news.run("raw_docs")
    news.update()
    for _ in range(2):
        assert news.tick() is None
    news.instance.report_run_failed(run)
    assert news.tick()


def test_an_update_while_raw_docs_reads_is_answered_although_raw_docs_ends_later(
    news: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_divorder.defs import assets

    run_graph = assets.run_graph

    def updated_meanwhile(*arguments: Any) -> Any:
        receipts = run_graph(*arguments)
        news.update()
        return receipts

    monkeypatch.setattr(assets, "run_graph", updated_meanwhile)
    news.run("raw_docs")
    assert news.tick()


def test_a_run_of_upstream_and_ours_together_asks_for_no_other(news: Project) -> None:
    execute(news.defs, news.instance, "docs", ["news", "raw_docs"])  # type: ignore[arg-type]
    assert news.tick() is None


def test_automation_of_the_project_stays_its_own(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    @dg.asset(deps=[["news", "curated_output"]], automation_condition=dg.AutomationCondition.eager())
    def training() -> None: ...

    project = Project(tmp_path, instance)
    defs = dg.Definitions.merge(project.defs, dg.Definitions(assets=[training]))
    dg.Definitions.validate_loadable(defs)
    repository = defs.get_repository_def()
    default = repository.get_sensor_def("default_automation_condition_sensor")
    theirs = default.asset_selection.resolve(repository.asset_graph)
    ours = repository.get_sensor_def("news_follow_upstream").asset_selection.resolve(repository.asset_graph)
    assert training.key in theirs and ours and theirs.isdisjoint(ours)


def test_without_automation_nothing_starts_by_itself(tmp_path: Path) -> None:
    defs = build_definitions(make_corpus(tmp_path), upstream={"raw_docs": ["docs"]}, automation=False)
    assert not defs.sensors and not defs.schedules
    assert not any(spec.automation_condition for spec in defs.resolve_all_asset_specs())


@pytest.mark.parametrize("executor", [dg.in_process_executor, dg.multiprocess_executor])
def test_a_silent_run_in_several_processes_is_not_called_dead(
    tmp_path: Path, instance: dg.DagsterInstance, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = Project(tmp_path, instance)
    news.defs = dg.Definitions.merge(
        build_definitions(tmp_path / "divorder.toml", key_prefix="news"), dg.Definitions(executor=executor)
    )
    run = create_run_for_test(
        instance,
        job_name="news_curate",
        status=dg.DagsterRunStatus.STARTED,
        tags=tags_of(news.settings, "news"),
    )
    later = time.time() + SILENT_SECONDS + 1
    monkeypatch.setattr("dagster_divorder.defs.automation.time.time", lambda: later)
    assert news.tick("news_watch_input") is None
    in_process = executor is dg.in_process_executor
    assert (status_of(instance, run) == dg.DagsterRunStatus.FAILURE) == in_process


def test_two_corpora_side_by_side_know_their_own_runs(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = {prefix: make_corpus(tmp_path / prefix) for prefix in ("news", "wiki")}
    pipelines = {
        prefix: Pipeline(GRAPH, load_settings(config), config, (prefix,))
        for prefix, config in corpora.items()
    }
    (run, picked, theirs, other) = (
        create_run_for_test(
            instance,
            job_name=job,
            status=dg.DagsterRunStatus.STARTED,
            asset_selection=frozenset({dg.AssetKey([prefix, "clusters"])}) if job == "__ASSET_JOB" else None,
            tags=tags_of(pipelines[store].settings, store),
        )
        for job, prefix, store in (
            ("news_curate", "news", "news"),
            ("__ASSET_JOB", "news", "news"),
            ("__ASSET_JOB", "wiki", "news"),
            ("wiki_curate", "wiki", "wiki"),
        )
    )
    later = time.time() + SILENT_SECONDS + 1
    monkeypatch.setattr("dagster_divorder.defs.automation.time.time", lambda: later)
    context = dg.build_sensor_context(instance=instance)
    result = watch_input(pipelines["news"]).evaluate_tick(context)
    assert "was found dead" in str(result.skip_message)
    statuses = [status_of(instance, one) for one in (run, picked, theirs, other)]
    assert statuses == [dg.DagsterRunStatus.FAILURE] * 2 + [dg.DagsterRunStatus.STARTED] * 2


def test_a_result_of_the_command_line_does_not_hide_an_update(news: Project) -> None:
    """It is reported without a run, so nothing tells when it began to read."""
    news.update()
    news.instance.report_runless_asset_event(dg.AssetMaterialization(["news", "raw_docs"]))
    assert news.tick()
