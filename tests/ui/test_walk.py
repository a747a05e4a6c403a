"""A new user's walk with a corpus of their own: the commands in a terminal, Dagster's pages, and the report.

What is said in one place is said in all. The commands run once; the tests go on to Dagster from there.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import orjson
import pytest

from dagster_divorder.defs.metadata import PICTURE_BYTES
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH, asset_upstream, run_all
from dagster_divorder.stages.output.ordering_report import PAGE
from dagster_divorder.view.drawing import cluster_colours
from dagster_divorder.view.measures import MEASURES
from dagster_divorder.view.words import ORDERS, TRAIN_ON
from tests.conftest import topic_records
from tests.defs.conftest import markdown_rows, pictures, rows_of
from tests.faults.conftest import differing, output_of
from tests.faults.runner import REPORTING, Runner
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

SMALL = "[advanced]\nvocab_size = 512\ntoken_dims = 16\n"
PER_TOPIC, APPENDED = 60, 2
FIGURES = {"documents", "new_documents", "reused_documents", "seconds"}
PICTURED = {"diversity_metrics", "k_calibration", "cluster_map"}


@dataclass
class Walk:
    """folder: where the commands run, each in a process of its own. said: what each step printed, on both streams."""

    folder: Path
    runner: Runner
    said: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "divorder.toml"

    @property
    def output(self) -> Path:
        return self.folder / "divorder/curated"

    def do(self, step: str, *command: str) -> None:
        log = self.folder.with_suffix(".log")
        # Nobody has told DIVORDER_CONFIG here.
        environment = {"DIVORDER_CONFIG": ""}
        status = self.runner.run(self.config, log, plain=command, environment=environment, imports=REPORTING)
        self.said[step] = log.with_suffix(".log.out").read_text()
        assert status == 0, f"{step}: {self.said[step]}"

    def append(self, records: list[dict[str, Any]], what: str) -> None:
        with open(self.folder / "my-corpus/docs.jsonl", "ab") as file:
            file.writelines(
                orjson.dumps({"id": f"{what}-{at}", **record}) + b"\n" for at, record in enumerate(records)
            )


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> Walk:
    walk = Walk(tmp_path_factory.mktemp("walk"), runner)
    (walk.folder / "my-corpus").mkdir()
    walk.append(topic_records(PER_TOPIC), "first")
    walk.do("init", "init", "my-corpus")
    # What a person changes in the file: here, so that everything is quick.
    settings = (
        walk.config.read_text().replace("length = 512", "length = 128").replace("batch = 8", "batch = 4")
    )
    settings = (
        settings.replace("[model]", f"{SMALL}[model]")
        .replace("k = 12", "k = 4")
        .replace("checked = 1", "# checked = 1")
    )
    # A seed with which every window beats shuffling: of the few batches across the seam one is else worse by chance.
    walk.config.write_text(f"seed = 1\n{settings}")
    walk.do("run", "run")
    walk.append(topic_records(APPENDED, start=PER_TOPIC), "appended")
    walk.do("run, appended", "run")
    walk.do("report", "report")
    return walk


@pytest.fixture(scope="module")
def config(walk: Walk) -> Path:
    return walk.config


@pytest.fixture(scope="module")
def dev(walk: Walk) -> Iterator[DagsterDev]:
    dev, ffmpeg = DagsterDev(walk.folder), walk.folder / ".ffmpeg"
    # Nobody looks at the films here: what "encodes" them throws their frames away.
    ffmpeg.write_text('#!/bin/sh\ncat > /dev/null\nfor film; do :; done\necho film > "$film"\n')
    ffmpeg.chmod(0o700)
    dev.environment["IMAGEIO_FFMPEG_EXE"] = str(ffmpeg)
    with dev:
        yield dev


def curate(dev: DagsterDev) -> None:
    """Make the output's assets if they were not made yet."""
    if not dev.made("curated_output"):
        assert dev.end_of(dev.launch("curate")) == "SUCCESS"


def test_a_click_materialises_all_and_the_output_before_the_evidence(
    dev: DagsterDev, page: Page, config: Path
) -> None:
    from playwright.sync_api import expect

    assets = list(dev.assets())
    open_graph(page, dev)
    for asset in assets:
        expect(on_graph(page, asset)).to_be_visible()
    materialise_all(page, dev)
    expect(page.get_by_text(f"{len(assets)} assets")).to_be_visible()
    expect(page.get_by_text(f"{sum(len(stage.checks) for stage in GRAPH.values())} checks")).to_be_visible()
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
    expect(table.locator("th")).to_have_text(["measure", "better", *reversed(ORDERS.values()), "meaning"])
    rows = [row.locator("td").all_inner_texts()[:2] for row in table.locator("tbody tr").all()]
    lead = rows[0][0].removeprefix("batch TV of ").removesuffix(", mean, %")
    assert (
        rows[0] == [f"batch TV of {lead}, mean, %", "less"]
        and ["clusters in a sequence, mean", "more"] in rows
    )
    box, around = table.bounding_box(), page.get_by_role("dialog").bounding_box()
    assert box and around and 0 <= around["x"] <= box["x"]
    assert box["x"] + box["width"] <= around["x"] + around["width"] <= 1280
    close_dialog(page)
    picture = show_picture(page)
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 300
    close_dialog(page)

    page.get_by_role("button", name="Plots").click()
    for figure in (
        f"batch TV of {lead}, mean, %",
        f"batch TV of {lead}, times shuffled",
        "clusters in a sequence, mean",
    ):
        expect(page.get_by_text(figure, exact=True)).to_be_in_viewport()


WIDEST = """
() => [...document.querySelectorAll("[class*=AssetEventMetadataEntriesTable]")]
  .map(table => [table.scrollWidth - table.clientWidth, table.innerText])
"""


def test_metadata_is_not_clipped_on_a_common_screen(dev: DagsterDev, page: Page, made: Metadata) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    for asset in ("raw_docs", "clusters", "diversity_metrics", "strategy_comparison"):
        page.goto(f"{dev.url}/assets/{asset}")
        # The last entry, below all others.
        page.get_by_role("cell", name="seconds", exact=True).wait_for()
        clipped = [text for beyond, text in page.evaluate(WIDEST) if beyond > 1]
        assert clipped == [], asset


Metadata = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def made(dev: DagsterDev, walk: Walk) -> Metadata:
    """Asset -> metadata of its last materialisation, from the history that `dagster dev` keeps."""
    if not all(dev.made(asset) for asset in dev.assets()):
        assert dev.end_of(dev.launch("__ASSET_JOB", list(dev.assets()))) == "SUCCESS"
    found = {}
    # Folders in dagster.yaml are seen from the working directory.
    with contextlib.chdir(walk.folder), dg.DagsterInstance.from_config(str(walk.folder)) as instance:
        for stage in asset_upstream(GRAPH, load_settings(walk.config)):
            event = instance.get_latest_materialization_event(dg.AssetKey(stage))
            assert event and event.asset_materialization
            found[stage] = dict(event.asset_materialization.metadata)
    return found


def test_every_asset_reports_figures_and_pictures_of_bounded_size(dev: DagsterDev, made: Metadata) -> None:
    assert set(dev.assets().values()) == {"FRESH"}
    for name, metadata in made.items():
        assert set(metadata) >= FIGURES, name
        for what, png in pictures(metadata).items():
            assert len(png) <= PICTURE_BYTES, (name, what)
    assert {name for name, metadata in made.items() if pictures(metadata)} >= PICTURED


@pytest.fixture
def tables(page: Page, made: Metadata, walk: Walk) -> dict[str, list[dict[str, str]]]:
    """The tables of the report that Dagster made, by their captions; the tiles are one more, "tiles"."""
    page.goto((walk.output / PAGE).as_uri())
    found: dict[str, list[dict[str, str]]] = page.evaluate(TABLES)
    return found


TABLES = """
() => {
  const text = of => of.textContent.replace(/\\s+/g, " ").trim()
  const found = {}
  for (const of of document.querySelectorAll("details.table")) {
    const heads = [...of.querySelectorAll("thead th")].map(text)
    const caption = `${of.closest("section").id}: ${text(of.querySelector("summary"))}`
    found[caption] = [...of.querySelectorAll("tbody tr")].map(row => {
      const cells = [...row.children].map(text).map((cell, at) => [heads[at], cell])
      const swatch = row.querySelector(".swatch")
      return Object.fromEntries([...cells,
        ["colour", swatch ? getComputedStyle(swatch).backgroundColor : ""]])
    })
  }
  found.tiles = [...document.querySelectorAll(".tiles > div")].map(of => {
    const [shuffled, original] = text(of.querySelector(".than")).match(/[\\d.,]+/g)
    const ours = of.querySelector("b").firstChild.textContent.trim()
    return {"what": text(of.querySelector("dt")), ours, shuffled, original}
  })
  return found
}
"""


def in_manifest(lead: str) -> dict[str, tuple[str, ...]]:
    """Label of a measure -> where the manifest has it. lead: the first trait that people see."""
    return {
        f"batch TV of {lead}, mean, %": ("batch_tv", lead, "mean"),
        f"share error of {lead}, worst batch, points": ("windows", "batch", lead, "worst"),
        "clusters in a sequence, mean": ("distinct", "cluster", "mean"),
        "prefix deviation, mean, tokens": ("prefix", "mean"),
    }


def test_one_figure_is_the_same_everywhere(
    dev: DagsterDev, made: Metadata, walk: Walk, tables: dict[str, list[dict[str, str]]]
) -> None:
    walk.do("summary", "summary", "diversity_metrics")
    manifest = orjson.loads((walk.output / "curated_meta.json").read_bytes())
    metrics = made["diversity_metrics"]

    # The orders side by side: in the UI, on the console, in the manifest, in the tiles.
    orders = {row["measure"]: row for row in markdown_rows(metrics["orders"].value)}
    verdict = metrics["verdict"].value.replace("**", "")
    assert verdict in walk.said["summary"] and verdict.startswith("This order keeps")
    of_all = walk.said["summary"].partition("\norders\n")[2].splitlines()
    console = [line for line in of_all if line.startswith(tuple(orders))]
    names = [*reversed(ORDERS.values())]
    assert {name: [row[order] for order in names] for name, row in orders.items()} == {
        row[0]: row[2:-1] for row in (re.split(r"  +", line) for line in console)
    }
    lead = next(iter(orders)).removeprefix("batch TV of ").removesuffix(", mean, %")
    shown = {measure.of_trait(lead).label: measure.show for measure in MEASURES.values()}
    for name, path in in_manifest(lead).items():
        for order, words in ORDERS.items():
            assert shown[name](reduce(getitem, path, manifest["diversity"][order])) == orders[name][words]
    ours, shuffled, original = (ORDERS[name] for name in (TRAIN_ON, "sequences_random", "original"))
    tiles = {tuple(tile[name] for name in ("ours", "shuffled", "original")) for tile in tables["tiles"]}
    assert tiles == {
        tuple(orders[name][order] for order in (ours, shuffled, original)) for name in in_manifest(lead)
    }

    # Quality over runs.
    for name, row in orders.items():
        if name in metrics:
            assert float(row[ours].replace(",", "")) == metrics[name].value
    tv = [manifest["diversity"][name]["batch_tv"][lead]["mean"] for name in (TRAIN_ON, "sequences_random")]
    assert metrics[f"batch TV of {lead}, times shuffled"].value == pytest.approx(tv[0] / tv[1], rel=1e-3)
    drift = tables["drift: Features"]
    drifting = sum(row["drifts"] == "yes" for row in drift)
    assert drifting == metrics["features that drift"].value

    for line in metrics["findings"].value.removeprefix("- ").split("\n- "):
        assert f"- {line}" in walk.said["summary"].splitlines()


def test_a_cluster_has_one_name_and_one_colour(
    page: Page, made: Metadata, tables: dict[str, list[dict[str, str]]]
) -> None:
    rows = rows_of(made["clusters"]["cluster_sizes"])
    names = [row["name"] for row in rows]
    colours = {
        name: "rgb({}, {}, {})".format(*(round(255 * float(part)) for part in rgb))
        for name, rgb in zip(names, cluster_colours(len(names)), strict=True)
    }
    shown = tables["clusters: Where the tokens of each cluster lie"]
    assert {row["cluster"]: row["colour"] for row in shown} == colours
    assert {row["cluster"]: row["documents"] for row in shown} == {
        row["name"]: f"{int(row['documents']):,}" for row in rows
    }


def test_nothing_ends_in_a_traceback(dev: DagsterDev, walk: Walk) -> None:
    curate(dev)
    said = {**walk.said, "dagster dev": dev.log.read_text()}
    assert [step for step, text in said.items() if "Traceback" in text] == []
    warnings = [line for line in said["dagster dev"].splitlines() if "Warning" in line]
    assert [line for line in warnings if "dagster_divorder" in line] == []


def test_appended_lines_start_a_run_and_a_cancelled_one_leaves_a_sound_store(
    dev: DagsterDev, walk: Walk, tmp_path: Path
) -> None:
    curate(dev)
    alone = shutil.copytree(walk.folder, tmp_path / "alone", ignore=shutil.ignore_patterns(".*"))
    before = set(dev.runs())
    walk.append(topic_records(500, start=1000), "many")
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
    until(lambda: is_free(walk.folder / "divorder/store"), 30, "free store")
    assert dev.made("curated_output")["run"] != run
    # Who cancels a run does not want it again: the change is answered.
    ticks = len(dev.ticks())
    until(lambda: len(dev.ticks()) > ticks or len(dev.ticks()) == 20, 60, "tick after the run was cancelled")
    assert set(dev.runs()) - before == {run}

    assert dev.end_of(dev.launch("curate")) == "SUCCESS"
    shutil.copy(walk.folder / "my-corpus/docs.jsonl", alone / "my-corpus")
    run_all(load_settings(alone / "divorder.toml", {}))
    expected = output_of(alone / "divorder/settings")
    # The report and the films lie beside the output, and are no part of it.
    assert [name for name in differing(walk.output, expected) if name in expected] == []
