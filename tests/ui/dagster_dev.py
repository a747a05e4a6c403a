"""`dagster dev` as a person starts it, in a folder of its own, and questions to it over its GraphQL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dagster_graphql import DagsterGraphQLClient

from tests.conftest import ROOT, variables_without

Found = TypeVar("Found")

READY_SECONDS = 180.0
RUN_SECONDS = 400.0
POLL_SECONDS = 0.5

_RUNS = "{ runsOrError { ... on Runs { results { runId jobName status tags { key value } } } } }"
_LOGS = """query($run: ID!) { logsForRun(runId: $run) { ... on EventConnection { events {
    __typename ... on MessageEvent { message stepKey timestamp } } } } }"""
_TICKS = """query($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) { ... on Sensor {
    sensorState { status ticks(limit: 20) { status skipReason runIds } } } } }"""
_MADE = """query($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset {
    assetMaterializations(limit: 1) { runId tags { key value } metadataEntries {
        label ... on IntMetadataEntry { intValue } ... on BoolMetadataEntry { boolValue } } } } } }"""
_LOCATION = """{ workspaceOrError { ... on Workspace { locationEntries { name loadStatus
    locationOrLoadError { __typename ... on PythonError { message } } } } } }"""

REPOSITORY = {"repositoryLocationName": "divorder", "repositoryName": "__repository__"}


def until(found: Callable[[], Found | None], seconds: float, what: str) -> Found:
    """What `found` gives once that is something, asked again and again.

    Raises:
        TimeoutError: it gave nothing for so long.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"no {what} in {seconds:g} s")


class DagsterDev:
    """A running `dagster dev`: a context manager. `folder` holds its history, its log, and its settings file where none
    is named."""

    def __init__(self, folder: Path, config: Path | None = None) -> None:
        self.folder = folder
        self.log = folder / "dagster_dev.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        named = {"DIVORDER_CONFIG": str(config)} if config else {}
        own = variables_without("DAGSTER_", "DIVORDER_")
        self.environment = {**own, **named, "PYTHONUNBUFFERED": "1"}
        # As in a fresh checkout: Dagster finds its settings and the code location in the working directory.
        for file in ("dagster.yaml", "workspace.yaml"):
            shutil.copy(ROOT / file, folder)

    def __enter__(self) -> DagsterDev:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(self.port)],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A shell that starts pytest in the background has it ignored.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        try:
            until(self._is_ready, READY_SECONDS, "answer from dagster dev")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"dagster dev ended:\n{self.log.read_text()}")
        try:
            entries = self.ask(_LOCATION)["workspaceOrError"]["locationEntries"]
        except (urllib.error.URLError, ConnectionError):
            return False
        errors = [entry["locationOrLoadError"] for entry in entries if entry["loadStatus"] == "LOADED"]
        for error in errors:
            if error["__typename"] == "PythonError":
                raise RuntimeError(error["message"])
        return 0 < len(errors) == len(entries)

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The data that answers a GraphQL query."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        if "errors" in answer:
            raise RuntimeError(answer["errors"])
        data: dict[str, Any] = answer["data"]
        return data

    def assets(self) -> dict[str, str]:
        """The assets that can be materialised: whether they are out of step with what they are made from ("FRESH")."""
        nodes = self.ask("{ assetNodes { assetKey { path } isMaterializable staleStatus } }")["assetNodes"]
        return {n["assetKey"]["path"][-1]: n["staleStatus"] for n in nodes if n["isMaterializable"]}

    @property
    def client(self) -> DagsterGraphQLClient:
        return DagsterGraphQLClient("127.0.0.1", urlsplit(self.url).port)

    def launch(self, job: str, assets: Sequence[str] | None = None) -> str:
        """Start a job as the launchpad does with nothing filled in, or some of its assets; the run's id."""
        return self.client.submit_job_execution(
            job, *REPOSITORY.values(), run_config={}, asset_selection=assets
        )

    def terminate(self, run: str) -> None:
        """Cancel a run as the UI does."""
        self.client.terminate_run(run)

    def runs(self) -> dict[str, dict[str, Any]]:
        """Runs by id, the last one first: `jobName`, `status`, and their `tags` as a dict."""
        results = self.ask(_RUNS)["runsOrError"]["results"]
        return {
            run["runId"]: {**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}}
            for run in results
        }

    def end_of(self, run: str, seconds: float = RUN_SECONDS) -> str:
        """The status that a run ends with."""

        def ended() -> str | None:
            status = self.client.get_run_status(run).value
            return status if status in ("SUCCESS", "FAILURE", "CANCELED") else None

        return until(ended, seconds, f"end of run {run}")

    def said(self, run: str) -> list[dict[str, Any]]:
        """The events of a run so far: `__typename`, `message`, `stepKey`."""
        events: list[dict[str, Any]] = self.ask(_LOGS, run=run)["logsForRun"]["events"]
        return events

    def ticks(self) -> list[dict[str, Any]]:
        """The last ticks of the sensor, the latest first: `status`, `skipReason`, `runIds`."""
        state = self.ask(_TICKS, selector={**REPOSITORY, "sensorName": "watch_input"})["sensorOrError"]
        ticks: list[dict[str, Any]] = state["sensorState"]["ticks"]
        return ticks

    def made(self, asset: str) -> dict[str, Any]:
        """Numbers and flags of an asset's last materialisation, its `run` and its data `version`."""
        found = self.ask(_MADE, key={"path": [asset]})["assetOrError"]["assetMaterializations"]
        if not found:
            return {}
        values = {
            entry["label"]: entry.get("intValue", entry.get("boolValue"))
            for entry in found[0]["metadataEntries"]
        }
        tags = {tag["key"]: tag["value"] for tag in found[0]["tags"]}
        return {**values, "run": found[0]["runId"], "version": tags["dagster/data_version"]}
