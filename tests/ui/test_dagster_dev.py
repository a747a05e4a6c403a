"""`dagster dev` left running: appended lines start a run, a cancelled run does no harm. Its pages: test_walk.py.

The tests share one process and go on from each other's state, but each makes what it needs if it runs alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson

from dagster_divorder.settings import load_settings
from dagster_divorder.stages import run_all
from tests.conftest import topic_records
from tests.faults.conftest import differing, output_of
from tests.faults.test_together import is_free
from tests.ui.dagster_dev import DagsterDev, until

SENSOR = "dagster/sensor_name"


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
    nothing = ["no change in 1 input file"] * 2
    until(
        lambda: [tick["skipReason"] for tick in dev.ticks()[:2]] == nothing, 60, "two ticks without a change"
    )
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
