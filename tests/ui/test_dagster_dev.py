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

from dagster_divorder.defs.metadata import PICTURE_BYTES
from dagster_divorder.pipeline import run_all
from dagster_divorder.pipeline.checks import all_checks
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.view.words import ORDERS
from tests.conftest import topic_records
from tests.defs.conftest import pictures, run_command
from tests.faults.conftest import differing, output_of
from tests.faults.test_together import is_free
from tests.ui.dagster_dev import DagsterDev, until
from tests.ui.pages import (
    close_dialog,
    materialise_all,
    on_graph,
    open_graph,
    open_metrics,
    show_orders,
    show_picture,
)

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


def test_a_click_materialises_all_and_the_output_before_the_evidence(
    dev: DagsterDev, page: Page, config: Path
) -> None:
    from playwright.sync_api import expect

    assets = dev.assets()
    open_graph(page, dev)
    for asset in assets:
        expect(on_graph(page, asset)).to_be_visible()
    materialise_all(page)
    expect(page.get_by_text(f"{len(assets)} assets")).to_be_visible()
    expect(page.get_by_text(f"{len(list(all_checks()))} checks")).to_be_visible()
    ((run, about),) = dev.runs().items()
    assert about["status"] == "SUCCESS"
    started = [e["stepKey"] for e in dev.said(run) if e["__typename"] == "ExecutionStepStartEvent"]
    output = started.index("curated_output")
    needed = set(GRAPH.needed(load_settings(config)))
    assert {asset for asset in started[output + 1 :] if asset in assets} == set(assets) - needed != set()


def test_a_small_screen_shows_the_orders_their_quality_over_runs_and_checks(
    dev: DagsterDev, page: Page
) -> None:
    from playwright.sync_api import expect

    curate(dev)
    page.set_viewport_size({"width": 1280, "height": 900})
    open_metrics(page, dev)
    table = show_orders(page)
    assert table.locator("th").all_inner_texts() == ["measure", "better", *reversed(ORDERS.values())]
    rows = [row.locator("td").all_inner_texts()[:2] for row in table.locator("tbody tr").all()]
    assert rows[0] == ["clusters in a sequence, mean", "more"] and ["batch TV, mean, %", "less"] in rows
    box, around = table.bounding_box(), page.get_by_role("dialog").bounding_box()
    assert box and around and 0 <= around["x"] <= box["x"]
    assert box["x"] + box["width"] <= around["x"] + around["width"] <= 1280
    close_dialog(page)
    picture = show_picture(page)
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 300
    close_dialog(page)

    page.get_by_role("button", name="Plots").click()
    for figure in ("batch TV, mean, %", "batch TV, times shuffled", "clusters in a sequence, mean"):
        expect(page.get_by_text(figure, exact=True)).to_be_in_viewport()
    for figure in (
        "worst batch anywhere, times shuffled",
        "features that drift",
        "farthest tenth, times shuffled",
    ):
        expect(page.get_by_text(figure, exact=True)).to_be_attached()

    for check, said, column in (
        ("order_beats_shuffling", "is nearer to the mix of the whole corpus than a shuffled one", "better"),
        ("nothing_drifts", "what is read last is like what is read first", "drifts"),
    ):
        page.goto(f"{dev.url}/assets/diversity_metrics?view=checks&checkDetail={check}")
        expect(page.get_by_text(said)).to_be_in_viewport()
        last = page.get_by_text(column, exact=True).last.bounding_box()
        assert last and last["x"] + last["width"] <= 1280


def test_pages_say_where_settings_and_files_are(dev: DagsterDev, page: Page, config: Path) -> None:
    from playwright.sync_api import expect

    curate(dev)
    page.goto(f"{dev.url}/locations/divorder/jobs/curate")
    expect(page.get_by_role("cell", name="clusters.k", exact=True)).to_be_visible()
    page.goto(f"{dev.url}/locations/divorder/jobs/curate/playground")
    expect(page.get_by_text(f"divorder/settings: {config}")).to_be_visible()
    page.goto(f"{dev.url}/assets/curated_output")
    expect(page.get_by_text(str(config.parent / "curated"), exact=True).first).to_be_visible()
    # A browser opens no file for a page, so there is no link to one.
    assert page.locator("a[href^='file:']").count() == 0


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
    manifest = orjson.loads((config.parent / "curated/curated_meta.json").read_bytes())["diversity"]
    both = (manifest["sequences"], manifest["sequences_random"])
    for name, times, (ours, shuffled) in (
        (
            "clusters in a sequence, mean",
            "clusters in a sequence",
            (of["split"]["mean"] / 100 for of in both),
        ),
        ("batch TV, mean, %", "batch TV", (of["batch_shares"]["cluster"]["mean_tv"] for of in both)),
        (
            "worst batch anywhere, points off",
            "worst batch anywhere",
            (of["windows"]["batch"]["cluster"]["worst"] for of in both),
        ),
    ):
        quality = made["diversity_metrics"]
        assert quality[name].value == pytest.approx(100 * ours, abs=0.0051)
        assert quality[f"{times}, times shuffled"].value == pytest.approx(ours / shuffled, rel=1e-3)
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
