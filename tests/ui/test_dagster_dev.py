"""`dagster dev` as people use it: a click materialises all, appended lines start a run, a cancelled run does no harm.

The tests share one process and go on from each other's state, but each makes what it needs if it runs alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import orjson
import pytest

from dagster_divorder.defs.assets import PICTURE_BYTES
from dagster_divorder.pipeline import run_all
from dagster_divorder.pipeline.checks import all_checks
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH
from tests.conftest import topic_records
from tests.defs.conftest import pictures, run_command
from tests.faults.conftest import differing, output_of
from tests.faults.test_together import is_free
from tests.ui.dagster_dev import DagsterDev, until
from tests.ui.pages import materialise_all, on_graph, open_graph, open_metrics, show_picture

if TYPE_CHECKING:
    from playwright.sync_api import Page

SENSOR = "dagster/sensor_name"
FIGURES = {
    "documents",
    "new_documents",
    "reused_documents",
    "seconds",
    "documents_per_second",
    "changed",
    "stored_files",
}


def append(config: Path, start: int, per_topic: int) -> int:
    """Append records of four topics; how many."""
    records = topic_records(per_topic, start=start)
    with open(config.parent / "docs.jsonl", "ab") as file:
        file.writelines(orjson.dumps(record) + b"\n" for record in records)
    return len(records)


def curate(dev: DagsterDev) -> None:
    """Make an output if none was made yet."""
    if not dev.made("curated_output"):
        assert dev.end_of(dev.launch("curate")) == "SUCCESS"


def started_by_sensor(dev: DagsterDev) -> list[str]:
    return [run for run, about in dev.runs().items() if SENSOR in about["tags"]]


def test_a_click_materialises_all_and_shows_what_was_made(dev: DagsterDev, page: Page) -> None:
    from playwright.sync_api import expect

    assets = dev.assets()
    open_graph(page, dev)
    for asset in assets:
        expect(on_graph(page, asset)).to_be_visible()
    materialise_all(page)
    expect(page.get_by_text(f"{len(assets)} assets")).to_be_visible()
    expect(page.get_by_text(f"{len(list(all_checks()))} checks")).to_be_visible()
    (run,) = dev.runs().values()
    assert run["status"] == "SUCCESS"

    table = open_metrics(page, dev)
    for order in ("original", "random", "curated", "sequences random", "sequences"):
        expect(table.get_by_text(order, exact=True)).to_be_visible()
    picture = show_picture(page)
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 300


@pytest.fixture
def made(dev: DagsterDev, config: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Asset -> metadata of its first materialisation, from the history that `dagster dev` keeps."""
    if not all(dev.made(asset) for asset in dev.assets()):
        assert dev.end_of(dev.launch("__ASSET_JOB", dev.assets())) == "SUCCESS"
    # Folders in dagster.yaml are seen from the working directory.
    monkeypatch.chdir(config.parent)
    found = {}
    with dg.DagsterInstance.from_config(str(config.parent)) as instance:
        for stage in GRAPH.asset_upstream(load_settings(config)):
            (record,) = instance.fetch_materializations(dg.AssetKey(stage), limit=1, ascending=True).records
            assert record.asset_materialization
            found[stage] = dict(record.asset_materialization.metadata)
    return found


def test_every_asset_reports_figures_paths_and_pictures_of_bounded_size(
    made: dict[str, dict[str, Any]],
) -> None:
    for name, metadata in made.items():
        assert set(metadata) >= FIGURES, name
        assert metadata["changed"].value is True, name
        for what, png in pictures(metadata).items():
            assert len(png) <= PICTURE_BYTES, (name, what)
        for record in metadata["stored_files"].records:
            assert Path(str(record.data["path"])).exists(), (name, record)


def test_tables_and_pictures_show_the_evidence(made: dict[str, dict[str, Any]], config: Path) -> None:
    settings = load_settings(config)
    orders = made["diversity_metrics"]["orders"]
    columns = [column.name for column in orders.schema.columns]
    assert columns == ["figure", "original", "random", "curated", "sequences random", "sequences"]
    figures = {record.data["figure"] for record in orders.records}
    assert {"distinct clusters a sequence", "batch TV, clusters"} <= figures
    measures = [record.data for record in made["diversity_metrics"]["measures"].records]
    windows = {"sequence", "sequence (flush)", "batch", "batch (anywhere)", "prefix", "corpus"}
    assert {row["window"] for row in measures} >= windows
    assert {row["trait"] for row in measures} >= {"cluster", "length"}
    pairs = len(settings.comparison.documents) * len(settings.comparison.sequences)
    assert len(made["strategy_comparison"]["comparison"].records) == pairs
    (file,) = (record.data for record in made["raw_docs"]["input_files"].records)
    assert (file["records"], file["rejected"]) == (120, 0)
    shares = [record.data["share"] for record in made["clusters"]["cluster_sizes"].records]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    files = [record.data["file"] for record in made["curated_output"]["output_files"].records]
    assert "curated.jsonl" in files
    assert made["curated_output"]["output_folder"].value == str(settings.output.path)
    pictured = {"diversity_metrics", "k_calibration", "ari_comparison", "cluster_map", "ordering_report"}
    assert {name for name, metadata in made.items() if pictures(metadata)} >= pictured


def test_the_command_line_finds_nothing_left_to_do(
    dev: DagsterDev, made: dict[str, dict[str, Any]], config: Path
) -> None:
    before = {asset: dev.version(asset) for asset in made}
    module = ("-m", "dagster_divorder.definitions")
    run = run_command(config, "dagster", "asset", "materialize", "--select", "*", *module)
    assert run.returncode == 0, run.stderr
    assert "dagster_divorder" not in "".join(line for line in run.stderr.splitlines() if "Warning" in line)
    for asset in made:
        found = dev.made(asset)
        assert (found["new_documents"], found["changed"]) == (0, False), asset
    assert {asset: dev.version(asset) for asset in made} == before
    assert dev.stale() == set()
    summary = run_command(config, "divorder", "summary")
    assert summary.returncode == 0, summary.stderr
    folder = str(config.parent / "curated")
    shown = (
        "120 records",
        "original",
        "random",
        "curated",
        "clusters",
        "deep_embeddings",
        "ordering_report.html",
        folder,
    )
    for part in shown:
        assert part in summary.stdout


def test_appended_lines_start_one_run_that_computes_only_them(dev: DagsterDev, config: Path) -> None:
    curate(dev)
    until(lambda: dev.ticks()[:1], 60, "tick of the sensor")
    before = set(dev.runs())
    assert started_by_sensor(dev) == []
    new = append(config, start=100, per_topic=2)
    until(lambda: set(dev.runs()) - before, 120, "run after lines were appended")
    (run,) = set(dev.runs()) - before
    about = dev.runs()[run]
    assert (about["jobName"], about["tags"][SENSOR]) == ("curate", "watch_input")
    assert about["tags"]["divorder/why"].startswith("docs.jsonl has ")
    assert dev.end_of(run) == "SUCCESS"
    for stage in ("raw_docs", "token_counts", "shallow_embeddings", "clusters", "curated_output"):
        made = dev.made(stage)
        assert made["run"] == run
        assert (made["new_documents"], made["reused_documents"]) == (new, 120), stage
    assert dev.made("base_model")["changed"] is False
    folder = config.parent / "curated"
    lines = (folder / "curated.jsonl").read_bytes().splitlines()
    assert sorted(lines) == sorted((config.parent / "docs.jsonl").read_bytes().splitlines())
    # The sensor goes on looking, and starts no second run.
    until(lambda: all(tick["status"] == "SKIPPED" for tick in dev.ticks()[:2]), 60, "two ticks without a run")
    assert dev.ticks()[0]["skipReason"] == "no change in 1 input file"
    assert started_by_sensor(dev) == [run]


def test_a_cancelled_run_leaves_a_sound_store(dev: DagsterDev, config: Path, tmp_path: Path) -> None:
    curate(dev)
    shutil.copytree(config.parent / "store", tmp_path / "store")
    before = set(dev.runs())
    append(config, start=1000, per_topic=500)
    until(lambda: set(dev.runs()) - before, 120, "run after lines were appended")
    (run,) = set(dev.runs()) - before

    def said() -> list[str]:
        events = dev.said(run)
        return [event["message"] for event in events if event["__typename"] == "LogMessageEvent"]

    # What a stage says is there to read while the run goes on.
    until(lambda: any("2,000 new" in line for line in said()), 120, "line of the run's log")
    assert dev.runs()[run]["status"] == "STARTED"
    dev.terminate(run)
    assert dev.end_of(run) == "CANCELED"
    store = config.parent / "store"
    until(lambda: is_free(store), 30, "free store")
    assert dev.made("curated_output")["run"] != run
    # Who cancels a run does not want it again: the change is answered.
    ticks = len(dev.ticks())
    until(lambda: len(dev.ticks()) > ticks or len(dev.ticks()) == 20, 60, "tick after the run was cancelled")
    assert set(dev.runs()) - before == {run}

    assert dev.end_of(dev.launch("curate")) == "SUCCESS"
    alone = tmp_path / "divorder.toml"
    alone.write_text(config.read_text().replace("docs.jsonl", str(config.parent / "docs.jsonl")))
    run_all(load_settings(alone))
    expected = output_of(alone)
    # The report and the films lie beside the output, and are no part of it.
    assert [name for name in differing(config, expected) if name in expected] == []


def test_it_says_nothing_to_worry_about_and_keeps_its_history_where_it_says(
    dev: DagsterDev, config: Path
) -> None:
    curate(dev)
    lines = dev.log.read_text().splitlines()
    assert [line for line in lines if "Traceback" in line] == []
    assert [line for line in lines if "Warning" in line and "dagster_divorder" in line] == []
    for part in ("storage/history/runs.db", "logs"):
        assert (config.parent / ".dagster_home" / part).exists()
    needed = {stage for stage in GRAPH.needed(load_settings(config)) if GRAPH[stage].asset}
    assert {stage for stage in dev.assets() if dev.made(stage)} >= needed
