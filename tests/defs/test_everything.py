"""Everything materialised by the command line: every asset reports, and a second run finds nothing to do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import orjson
import pytest

from dagster_divorder.defs.stage import PICTURE_BYTES
from dagster_divorder.pipeline.graph import upstream
from dagster_divorder.pipeline.verify import PROMISES
from dagster_divorder.settings import Settings, load_settings
from tests.defs.conftest import (
    execute,
    load_definitions,
    make_corpus,
    metadata_of,
    pictures,
    run_command,
    unsynced,
    versions_of,
)

FIGURES = {
    "documents",
    "new_documents",
    "reused_documents",
    "seconds",
    "documents_per_second",
    "changed",
    "stored_files",
}
MATERIALIZE = ("dagster", "asset", "materialize", "--select", "*", "-m", "dagster_divorder.definitions")


@dataclass(frozen=True)
class Everything:
    """A corpus on which the command line has run: what it said, and the history it left."""

    config: Path
    settings: Settings
    said: subprocess.CompletedProcess[str]
    instance: dg.DagsterInstance


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    folder = tmp_path_factory.mktemp("everything")
    config, home = make_corpus(folder), folder / "home"
    home.mkdir()
    said = run_command(config, *MATERIALIZE, DAGSTER_HOME=str(home))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield Everything(config, load_settings(config, environ={}), said, instance)


def test_the_command_line_materialises_everything_without_a_warning_of_ours(everything: Everything) -> None:
    assert everything.said.returncode == 0, everything.said.stderr
    warnings = [line for line in everything.said.stderr.splitlines() if "Warning" in line]
    assert "dagster_divorder" not in "".join(warnings)
    meta = orjson.loads((everything.settings.output.path / "curated_meta.json").read_bytes())
    assert meta["counts"]["records"] == 120


def test_the_summary_tells_what_was_made(everything: Everything) -> None:
    summary = run_command(everything.config, "divorder", "summary")
    assert summary.returncode == 0, summary.stderr
    folder = str(everything.settings.output.path)
    for part in ("120 records", "original", "random", "curated", "clusters", folder):
        assert part in summary.stdout


def made_by(instance: dg.DagsterInstance, settings: Settings) -> dict[str, dict[str, Any]]:
    """Asset -> metadata of its last materialisation."""
    found = {}
    for stage in upstream(settings):
        (record,) = instance.fetch_materializations(dg.AssetKey(stage), limit=1).records
        assert record.asset_materialization
        found[stage] = dict(record.asset_materialization.metadata)
    return found


def test_every_asset_reports_figures_paths_and_pictures_of_bounded_size(everything: Everything) -> None:
    for name, metadata in made_by(everything.instance, everything.settings).items():
        assert set(metadata) >= FIGURES, name
        assert metadata["changed"].value is True, name
        for what, png in pictures(metadata).items():
            assert len(png) <= PICTURE_BYTES, (name, what)
        for record in metadata["stored_files"].records:
            assert Path(str(record.data["path"])).exists(), (name, record)


def test_tables_and_pictures_show_the_evidence(everything: Everything) -> None:
    made = made_by(everything.instance, everything.settings)
    orders = made["diversity_metrics"]["orders"]
    columns = [column.name for column in orders.schema.columns]
    assert columns == ["figure", "original", "random", "curated", "sequences random", "sequences"]
    figures = {record.data["figure"] for record in orders.records}
    assert {"distinct clusters a sequence", "batch TV, clusters"} <= figures
    measures = [record.data for record in made["diversity_metrics"]["measures"].records]
    windows = {"sequence", "sequence (flush)", "batch", "batch (anywhere)", "prefix", "corpus"}
    assert {row["window"] for row in measures} >= windows
    assert {row["trait"] for row in measures} >= {"cluster", "length"}
    comparison = everything.settings.comparison
    pairs = len(comparison.documents) * len(comparison.sequences)
    assert len(made["strategy_comparison"]["comparison"].records) == pairs
    (file,) = (record.data for record in made["raw_docs"]["input_files"].records)
    assert (file["records"], file["rejected"]) == (120, 0)
    shares = [record.data["share"] for record in made["clusters"]["cluster_sizes"].records]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    files = [record.data["file"] for record in made["curated_output"]["output_files"].records]
    assert "curated.jsonl" in files
    assert made["curated_output"]["output_folder"].value == str(everything.settings.output.path)
    pictured = {"diversity_metrics", "k_calibration", "ari_comparison", "cluster_map", "ordering_report"}
    assert {name for name, metadata in made.items() if pictures(metadata)} >= pictured


def test_a_second_run_computes_nothing_and_leaves_everything_fresh(
    everything: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made_by(everything.instance, everything.settings)
    defs = load_definitions(everything.config, monkeypatch)
    versions = {
        name: everything.instance.get_latest_materialization_event(dg.AssetKey(name)) for name in before
    }
    run = execute(defs, everything.instance)
    for name, metadata in metadata_of(run).items():
        assert metadata["new_documents"].value == 0, name
        assert metadata["changed"].value is False, name
    for name, version in versions_of(run).items():
        event = versions[name]
        assert event and event.asset_materialization
        assert (event.asset_materialization.tags or {})["dagster/data_version"] == version, name
    assert {check.check_name for check in run.get_asset_check_evaluations()} == set(PROMISES)
    assert unsynced(defs, everything.instance) == set()
