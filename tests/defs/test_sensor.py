"""The sensor and the schedule: which changes start a run, and that each starts one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_divorder import build_definitions
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH, run_stage
from tests.conftest import topic_records, write_jsonl
from tests.defs.conftest import Daemon, make_corpus

Load = Callable[[], dg.Definitions]


@pytest.fixture
def settings(config: Path) -> Settings:
    return load_settings(config)


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


def test_the_first_run_is_the_users_and_every_change_after_it_starts_one(
    config: Path, settings: Settings, instance: dg.DagsterInstance
) -> None:
    daemon = Daemon(instance, settings)
    assert "materialise it once" in str(daemon.tick())
    run_stage("raw_docs", settings)
    assert daemon.tick() == "no change in 1 input file"
    assert Daemon(instance, settings).tick() == "no change in 1 input file since the last run"
    append(config)
    # A new sensor notices what was appended since the last run.
    for one in (daemon, Daemon(instance, settings)):
        assert [one.starts() for _ in range(3)] == [True, False, False]
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
    daemon = Daemon(dg.DagsterInstance.ephemeral(), load_settings(config))
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


def test_a_run_starts_once_two_looks_have_seen_the_same(config: Path, instance: dg.DagsterInstance) -> None:
    daemon = Daemon(instance, load_settings(config))
    daemon.look()
    for _ in range(3):
        append(config)
        assert "if the next look finds no other change" in str(daemon.look())
    assert isinstance(daemon.look(), dg.RunRequest)
    assert not daemon.starts()


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.CANCELING])
def test_while_a_run_of_the_sensor_is_under_way_no_other_is_asked_for(
    config: Path, daemon: Daemon, instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    append(config)
    job = build_definitions(config).resolve_job_def("curate")
    # Runs of others do not count.
    instance.create_run_for_job(job, status=status)
    instance.create_run_for_job(job, status=status, tags={"dagster/sensor_name": "wiki_watch_input"})
    run = instance.create_run_for_job(job, status=status, tags={"dagster/sensor_name": "watch_input"})
    assert f"checked again after run {run.run_id[:8]} (curate)" in str(daemon.tick())
    instance.delete_run(run.run_id)
    assert daemon.starts()


# The schedule ---------------------------------------------------------------------------------------------------------


def test_at_night_what_was_made_before_is_brought_up_to_date(
    config: Path, settings: Settings, instance: dg.DagsterInstance
) -> None:
    defs = build_definitions(config, key_prefix="news")
    job = defs.resolve_implicit_global_asset_job_def()

    def night() -> set[str] | str:
        """The assets that the schedule asks for, or why it asks for none."""
        repository = defs.get_repository_def()
        context = dg.build_schedule_context(instance=instance, repository_def=repository)
        tick = repository.get_schedule_def("news_daily").evaluate_tick(context)
        if not tick.run_requests:
            return str(tick.skip_message)
        (request,) = tick.run_requests
        return {key.path[-1] for key in request.asset_selection}

    def made(*stages: str) -> None:
        assert job.execute_in_process(
            instance=instance, asset_selection=[dg.AssetKey(["news", stage]) for stage in stages]
        ).success

    assert night() == "nothing was made under these settings yet"
    curated = {stage for stage in GRAPH.needed(settings) if GRAPH[stage].asset}
    made(*curated, "strategy_comparison")
    assert "up to date" in str(night())
    append(config)
    assert night() == curated | {"strategy_comparison"}
    # As the sensor's run does.
    made(*curated)
    assert night() == curated | {"strategy_comparison"}
    made("strategy_comparison")
    assert "up to date" in str(night())
    # Other settings are the user's to apply.
    append(config)
    config.write_text(config.read_text().replace("k = 4", "k = 5"))
    defs = build_definitions(config, key_prefix="news")
    assert "clusters" not in night()


# Assets upstream -----------------------------------------------------------------------------------------------------


class Project:
    """A project whose asset `docs` writes the corpus of a prefix, with ticks of the corpus's sensor."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, more: str = "") -> None:
        config, self.instance, self.written = make_corpus(folder), instance, 0
        write_jsonl(folder / "in/first.jsonl", topic_records(2))
        config.write_text(config.read_text().replace("docs.jsonl", "in"))
        config.write_text(config.read_text() + more)
        self.settings = load_settings(config)

        @dg.asset
        def docs() -> None:
            self.written += 1
            write_jsonl(folder / f"in/{self.written}.jsonl", topic_records(1, start=100 * self.written))

        self.docs = docs
        corpus = build_definitions(config, key_prefix="news", upstream={"raw_docs": docs})
        self.defs = dg.Definitions.merge(
            corpus, dg.Definitions(assets=[docs], executor=dg.in_process_executor)
        )
        self.daemon = Daemon(instance, self.settings, key_prefix=("news",), upstream={"raw_docs": [docs]})
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


def test_the_sensor_waits_for_an_asset_that_is_being_made(news: Project, tmp_path: Path) -> None:
    job = news.defs.get_repository_def().get_job("__ASSET_JOB").get_subset(asset_selection={news.docs.key})
    run = news.instance.create_run_for_job(job, asset_selection=frozenset({news.docs.key}))
    write_jsonl(tmp_path / "in/half.jsonl", topic_records(1, start=7))
    assert f"checked again after run {run.run_id[:8]} (__ASSET_JOB)" in str(news.daemon.tick())
    news.instance.report_run_failed(run)
    assert news.daemon.starts()


def test_an_observed_source_starts_a_run_when_its_version_changes(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    daemon = Daemon(
        instance, load_settings(make_corpus(tmp_path)), upstream={"raw_docs": [dg.AssetKey("lake")]}
    )

    def starts_after(version: str) -> bool:
        tags = {"dagster/data_version": version}
        instance.report_runless_asset_event(dg.AssetObservation("lake", tags=tags))
        return daemon.starts()

    assert [starts_after(version) for version in ("1", "1", "2", "2")] == [False, False, True, False]
