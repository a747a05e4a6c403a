"""`SqliteHistory` keeps what Dagster's own storage keeps, and each goes on with the files of the other."""

import sqlite3
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import dagster as dg
import pytest
import yaml

from dagster_divorder.cli.dagster_files import OURS
from dagster_divorder.defs.history import OPEN_RUNS

CUSTOM = yaml.safe_load((OURS / "dagster.yaml").read_text())["storage"]["custom"]
STORAGES = {
    "ours": lambda folder: {"custom": {**CUSTOM, "config": {"base_dir": str(folder)}}},
    "Dagster's": lambda folder: {"sqlite": {"base_dir": str(folder)}},
}


@dg.asset(check_specs=[dg.AssetCheckSpec("whole", asset="docs")])
def docs(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    context.log.info("read")
    return dg.MaterializeResult(
        metadata={"rows": 3},
        data_version=dg.DataVersion("1"),
        check_results=[dg.AssetCheckResult(check_name="whole", passed=True)],
    )


@dg.asset(deps=[docs])
def order() -> None: ...


@contextmanager
def instance_of(kind: str, folder: Path):
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text(
        yaml.safe_dump({"storage": STORAGES[kind](folder / "history"), "telemetry": {"enabled": False}})
    )
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def run_once(instance: dg.DagsterInstance) -> str:
    return dg.materialize([docs, order], instance=instance).run_id


def told(instance: dg.DagsterInstance, run: str) -> list[tuple[str | None, str | None]]:
    """Kind and step of every event of a run."""
    events = [record.event_log_entry for record in instance.get_records_for_run(run).records]
    return [
        (event.dagster_event and event.dagster_event.event_type_value, event.step_key) for event in events
    ]


def schema(database: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        return [*rows, *connection.execute("SELECT 'version', version_num FROM alembic_version")]


def databases(folder: Path) -> dict[str, Path]:
    history = folder / "history"
    return {str(path.relative_to(history)): path for path in history.rglob("*.db")}


@pytest.mark.parametrize("first", STORAGES)
def test_each_goes_on_with_the_history_of_the_other(first, tmp_path):
    second = next(kind for kind in STORAGES if kind != first)
    with instance_of(first, tmp_path) as instance:
        one = run_once(instance)
        events = told(instance, one)
    with instance_of(second, tmp_path) as instance:
        assert told(instance, one) == events
        two = run_once(instance)
        assert told(instance, two) == events
    with instance_of(first, tmp_path) as instance:
        assert told(instance, two) == events
        assert {run.run_id for run in instance.get_runs()} == {one, two}
        record = instance.get_latest_materialization_event(docs.key)
        assert record.run_id == two and record.asset_materialization.metadata["rows"].value == 3
        (check,) = instance.event_log_storage.get_asset_check_execution_history(
            next(iter(docs.check_keys)), limit=1
        )
        assert check.run_id == two


def test_databases_are_those_of_dagster(tmp_path):
    folders = {kind: tmp_path / kind for kind in STORAGES}
    runs = {}
    for kind, folder in folders.items():
        folder.mkdir()
        with instance_of(kind, folder) as instance:
            runs[kind] = run_once(instance)
    made = {
        kind: {name.replace(runs[kind], "RUN"): schema(path) for name, path in databases(folder).items()}
        for kind, folder in folders.items()
    }
    assert made["ours"] == made["Dagster's"]
    assert f"history/runs/{runs['ours']}.db" in databases(folders["ours"])


@pytest.mark.parametrize("kind", STORAGES)
def test_who_watches_a_run_is_told_while_the_database_stays_open(kind, tmp_path):
    with instance_of("ours", tmp_path) as writer:
        run = writer.create_run_for_job(
            dg.define_asset_job("job", [docs]).resolve(
                asset_graph=dg.Definitions([docs, order]).resolve_asset_graph()
            )
        )
        with instance_of(kind, tmp_path) as reader:
            seen = threading.Event()
            reader.event_log_storage.watch(run.run_id, None, lambda event, cursor: seen.set())
            writer.report_engine_event("begun", run)
            assert seen.wait(30)


def test_old_runs_are_read_again(tmp_path):
    with instance_of("ours", tmp_path) as instance:
        runs = [run_once(instance) for _ in range(2)]
        storage = instance.event_log_storage
        for other in range(OPEN_RUNS):
            storage.get_records_for_run(f"other-{other}")
        assert len(storage._engines) <= OPEN_RUNS + 1
        assert told(instance, runs[0]) == told(instance, runs[1]) != []


def test_a_half_made_database_is_finished_by_the_next_process(tmp_path):
    with instance_of("ours", tmp_path) as instance:
        run = run_once(instance)
        events = told(instance, run)
    killed = databases(tmp_path)[f"history/runs/{run}.db"].with_name("killed.db")
    killed.touch()
    with instance_of("ours", tmp_path) as instance:
        assert instance.get_records_for_run("killed").records == []
        assert told(instance, run) == events
    assert schema(killed) == schema(databases(tmp_path)[f"history/runs/{run}.db"])


def test_wiping_leaves_a_history_to_go_on_with(tmp_path):
    with instance_of("ours", tmp_path) as instance:
        events = told(instance, run_once(instance))
        instance.wipe()
        assert list(instance.get_runs()) == []
        assert told(instance, run_once(instance)) == events
