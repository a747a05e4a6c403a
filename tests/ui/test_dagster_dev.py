"""`dagster dev` left running: appended lines start a run, a cancelled run does no harm. Its pages: test_walk.py."""

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


def test_a_cancelled_run_leaves_a_sound_store(dev: DagsterDev, config: Path, tmp_path: Path) -> None:
    assert dev.end_of(dev.launch("curate")) == "SUCCESS"
    shutil.copytree(config.parent / "store", tmp_path / "store")
    before = set(dev.runs())
    with open(config.parent / "docs.jsonl", "ab") as file:
        file.writelines(orjson.dumps(record) + b"\n" for record in topic_records(500, start=1000))
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
