"""Runs of our assets: errors, the log on a terminal, and `divorder run` as a run of Dagster."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest

from dagster_divorder import build_definitions
from dagster_divorder.cli import main
from dagster_divorder.defs.log import COLUMNS, short_lines
from tests.conftest import topic_records, write_jsonl


def test_an_error_is_a_failure_that_begins_with_its_sentence(config: Path) -> None:
    config.write_text(config.read_text().replace("[input]", '[input]\nid_field = "none"'))
    curate = build_definitions(config).resolve_job_def("curate")
    result = curate.execute_in_process(raise_on_error=False)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    said = failure.step_failure_data.user_failure_data
    assert said and str(said.description).startswith("input.id_field: no record has")


def test_lines_have_time_and_message_and_fit_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    @dg.asset
    def words(context) -> None:  # Dagster refuses annotations that are text.
        context.log.debug("not said")
        context.log.info("words: " + "some more " * 20)
        context.log.warning("odd words")

    defs = dg.Definitions(assets=[words], loggers={"console": short_lines})
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(run_config={"loggers": {"console": {}}}).success
    lines = capfd.readouterr().err.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    said = [line[9:] for line in lines]
    assert said[0].startswith("INFO words: some more") and said[-1] == "WARNING odd words"
    assert " ".join(said[:-1]) == "INFO words: " + " ".join(["some more"] * 20)
    assert {line[:9] for line in lines[1:-1]} == {" " * 9}


# divorder run with DAGSTER_HOME --------------------------------------------------------------------------------------


@pytest.fixture
def home(config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An instance of Dagster whose history lies in a relative folder, and the corpus elsewhere."""
    home = config.parent / "home"
    home.mkdir()
    storage = "storage: {sqlite: {base_dir: .dagster_home/storage}}\ntelemetry: {enabled: false}\n"
    (home / "dagster.yaml").write_text(storage)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.chdir(config.parent)
    return home


def materialised(home: Path) -> dict[str, str | None]:
    """Asset -> data version, as the instance has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        with dg.DagsterInstance.get() as instance:
            events = {
                key: instance.get_latest_materialization_event(key) for key in instance.get_asset_keys()
            }
    return {
        key.to_user_string(): event.asset_materialization.tags["dagster/data_version"]
        for key, event in events.items()
        if event and event.asset_materialization and event.asset_materialization.tags
    }


def test_the_command_runs_in_the_instance_of_the_home(
    home: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["corpus"]["records"] == 120
    made = materialised(home)
    assert {"raw_docs", "clusters", "curated_output"} <= made.keys()
    assert made.keys().isdisjoint({"k_calibration", "strategy_comparison"})
    # A stage without an asset is made by the asset that it belongs to.
    assert main(["run", "cluster_names"]) == 0
    write_jsonl(config.parent / "docs.jsonl", topic_records(31))
    assert main(["run", "clusters"]) == 0
    again = materialised(home)
    assert again["clusters"] != made["clusters"] and again["curated_output"] == made["curated_output"]


def test_the_command_says_what_is_wrong_in_one_sentence(
    home: Path, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        assert main(["run"]) == 1
        return next(line for line in capsys.readouterr().err.splitlines() if line.startswith("divorder: "))

    text = config.read_text()
    config.write_text(text.replace("[input]", '[input]\nid_field = "none"'))
    assert said().startswith("divorder: input.id_field: no record has")
    config.write_text(text)
    for folder in ("home", str(home / "missing")):
        monkeypatch.setenv("DAGSTER_HOME", folder)
        assert "expected the absolute path of a folder" in said()
