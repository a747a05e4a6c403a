"""One instance, three code locations: this one, this one again with another store, and somebody else's.

A real `dagster dev`: what tags, origins and events runs have there is Dagster's to say, not a test's.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from dagster_divorder.defs.jobs import STORE, store_names
from dagster_divorder.store.local import LocalStore
from tests.defs.conftest import make_corpus
from tests.ui.dagster_dev import DagsterDev, until

WORKSPACE = """
load_from:
  - python_file: {relative_path: ours.py, location_name: divorder}
  - python_file: {relative_path: neighbour.py, location_name: neighbour}
  - python_file: {relative_path: theirs.py, location_name: theirs}
"""
OURS = """
import os
os.environ["DIVORDER_CONFIG"] = {config!r}
from dagster_divorder.defs import automation
automation.SILENT_SECONDS = 1.0
from dagster_divorder.definitions import defs
"""
THEIRS = """
import pathlib, time
import dagster as dg
@dg.asset
def training():
    while not pathlib.Path({stop!r}).exists():
        time.sleep(0.1)
defs = dg.Definitions([training])
"""


def test_the_runs_of_others_on_the_same_instance_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = tmp_path / "stop"
    workspace = tmp_path / "three.yaml"
    workspace.write_text(WORKSPACE)
    (tmp_path / "theirs.py").write_text(THEIRS.format(stop=str(stop)))
    stores = {}
    for name in ("ours", "neighbour"):
        (tmp_path / name).mkdir()
        config = make_corpus(tmp_path / name)
        rarely = "[advanced]\nsettle_seconds = 3600\n"
        config.write_text(config.read_text().replace("[advanced]\n", rarely))
        (tmp_path / f"{name}.py").write_text(OURS.format(config=str(config)))
        stores[name] = LocalStore(tmp_path / name / "store")

    monkeypatch.chdir(tmp_path)
    with DagsterDev(tmp_path, config, workspace) as dev, stores["neighbour"].lease():
        hand_started = dev.launch("__ASSET_JOB", ["training"], "theirs")
        waiting = dev.launch("__ASSET_JOB", ["raw_docs"], "neighbour")

        def said(run: str, words: str) -> bool:
            return any(words in (event.get("message") or "") for event in dev.said(run))

        until(lambda: said(waiting, "waiting for it to end"), 60, "run that waits for its store")
        until(lambda: said(hand_started, 'Started execution of step "training"'), 60, "hand-started run")
        # Silent for less long than they are, so that what fails it has looked at them.
        with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
            tags = {STORE: store_names(stores["ours"])[0]}
            dead = create_run_for_test(
                instance, job_name="curate", status=dg.DagsterRunStatus.STARTED, tags=tags
            ).run_id
            instance.report_engine_event("alive", instance.get_run_by_id(dead))
        assert dev.end_of(dead, 120) == "FAILURE"
        assert dev.runs()[hand_started]["status"] == dev.runs()[waiting]["status"] == "STARTED"
        assert dev.runs()[waiting]["tags"][STORE] in store_names(stores["neighbour"])
        assert STORE not in dev.runs()[hand_started]["tags"]
        stop.touch()
        assert dev.end_of(hand_started, 60) == "SUCCESS"
