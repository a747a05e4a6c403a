"""What a run of the command line reports to Dagster: its assets are fresh there, with figures and checks."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_divorder import build_definitions
from dagster_divorder.cli import main
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH
from tests.conftest import topic_records
from tests.defs.conftest import execute, make_corpus, metadata_of, unsynced

pytestmark = pytest.mark.slow

Run = Callable[..., Mapping[str, Any]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings file of a corpus that has run once, with nothing to report to."""
    config = make_corpus(tmp_path_factory.mktemp("corpus"))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAGSTER_HOME", raising=False)
        assert main(["run", "--config", str(config)]) == 0
    return config


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return tmp_path


@pytest.fixture
def run(corpus: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the corpus; what it reported, and what it said of that as `said`."""

    def reported(*arguments: str) -> Mapping[str, Any]:
        capsys.readouterr()
        assert main([*arguments, "--json", "--config", str(corpus)]) == 0
        out, said = capsys.readouterr()
        return {**(json.loads(out)["reported"] or {}), "said": said}

    return reported


def needed(config: Path, prefix: str = "") -> set[str]:
    settings = load_settings(config)
    return {
        prefix + asset for asset in GRAPH.asset_upstream(settings) if asset in GRAPH.needed(settings)
    }


def test_assets_of_a_run_are_fresh_and_show_what_a_run_of_dagster_shows(
    home: Path, corpus: Path, run: Run
) -> None:
    reported = run("run")
    assert set(reported["assets"]) == needed(corpus) and reported["error"] is None
    assert "reported to Dagster at" in reported["said"]
    defs = build_definitions(corpus)
    with dg.DagsterInstance.get() as instance:
        assert unsynced(defs, instance).isdisjoint(needed(corpus))
        events = {asset: instance.get_latest_materialization_event(dg.AssetKey(asset)) for asset in needed(corpus)}
        checked = instance.event_log_storage.get_latest_asset_check_execution_by_key(
            [key for key in defs.resolve_asset_graph().asset_check_keys if key.asset_key.path[-1] in needed(corpus)]
        )
        assert len(checked) == reported["checks"] > 8
        assert all(record.status.value == "SUCCEEDED" for record in checked.values())
        described = {record.event.dagster_event.event_specific_data.description for record in checked.values()}
        assert any("records" in text for text in described)
        in_dagster = metadata_of(execute(defs, instance, *needed(corpus)))
    for asset, event in events.items():
        metadata = event.asset_materialization.metadata
        timed = {"seconds", "documents_per_second", "new_documents_per_second", "changed"}
        assert list(metadata) == list(in_dagster[asset]), asset
        same = {name for name in metadata if metadata[name] == in_dagster[asset][name]}
        assert set(metadata) - same <= timed, asset


def test_changed_settings_are_stale_until_the_command_line_has_run(home: Path, corpus: Path, run: Run) -> None:
    run("run")
    text = corpus.read_text()
    corpus.write_text(text.replace("k = 4", "k = 3"))
    try:
        with dg.DagsterInstance.get() as instance:
            assert "clusters" in unsynced(build_definitions(corpus), instance)
            run("stats")
            stale = unsynced(build_definitions(corpus), instance) & needed(corpus)
            assert stale == {"curated_output"}
            run("run")
            assert unsynced(build_definitions(corpus), instance).isdisjoint(needed(corpus))
    finally:
        corpus.write_text(text)
