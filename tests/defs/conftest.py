"""A small corpus with a settings file that makes every stage quick, and the code location loaded with it."""

from __future__ import annotations

import base64
import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.defs.sensor import watch_input
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from tests.conftest import small_toml, topic_records, variables_without, write_jsonl

CONFIG = small_toml(input={"source_field": "source"})
BINARIES = Path(sys.executable).parent


def make_corpus(folder: Path) -> Path:
    """A corpus in a folder; its settings file."""
    write_jsonl(folder / "docs.jsonl", topic_records(30))
    file = folder / "divorder.toml"
    file.write_text(CONFIG)
    return file


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return make_corpus(tmp_path)


@pytest.fixture
def load(config: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dg.Definitions]:
    """Loads the code location with the test's settings file as it is then."""
    monkeypatch.setenv("DIVORDER_CONFIG", str(config))
    import dagster_divorder.definitions as module

    return lambda: importlib.reload(module).defs


def run_command(config: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command of the environment's, in a process of its own beside a settings file."""
    own = variables_without("DAGSTER_", "DIVORDER_")
    return subprocess.run(
        [str(BINARIES / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        env={**own, "DIVORDER_CONFIG": str(config), "DAGSTER_DISABLE_TELEMETRY": "1", **variables},
        cwd=config.parent,
    )


class Daemon:
    """Ticks of a corpus's sensor, which remembers its cursor."""

    def __init__(self, instance: dg.DagsterInstance, settings: Settings, **names: Any) -> None:
        self.sensor, self.instance = watch_input(Pipeline(GRAPH, settings, **names)), instance
        self.cursor: str | None = None
        self.last_run_key: str | None = None

    def tick(self) -> dg.RunRequest | str:
        """The run that a look asks for, or why it asks for none; after a change, of a second look."""
        said = self.look()
        return self.look() if "the next look" in str(said) else said

    def look(self) -> dg.RunRequest | str:
        """The run that one look asks for, or why it asks for none."""
        context = dg.SensorEvaluationContext(
            None, last_run_key=self.last_run_key, cursor=self.cursor, instance=self.instance
        )
        result = self.sensor.evaluate_tick(context)
        self.cursor = result.cursor
        if result.run_requests:
            self.last_run_key = result.run_requests[0].run_key
            return result.run_requests[0]
        return str(result.skip_message)

    def starts(self) -> bool:
        return isinstance(self.tick(), dg.RunRequest)


def metadata_of(run: Any) -> dict[str, dict[str, Any]]:
    """Of a run executed in this process: asset -> metadata name -> value."""
    return {
        event.asset_key.to_user_string(): dict(event.materialization.metadata)
        for event in run.get_asset_materialization_events()
    }


def versions_of(run: Any) -> dict[str, str]:
    """Of a run executed in this process: asset -> data version."""
    return {
        event.asset_key.to_user_string(): (event.materialization.tags or {})["dagster/data_version"]
        for event in run.get_asset_materialization_events()
    }


def execute(defs: dg.Definitions, instance: dg.DagsterInstance, *assets: str) -> Any:
    """Run assets, by default all of them, in this process."""
    job = defs.resolve_implicit_global_asset_job_def()
    selection = [dg.AssetKey(asset) for asset in assets] or None
    run = job.execute_in_process(instance=instance, asset_selection=selection)
    assert run.success
    return run


def rows_of(table: Any) -> list[dict[str, Any]]:
    """The rows of a table in metadata, which is one of Dagster's or, if it is wide, one in Markdown."""
    if isinstance(table, dg.TableMetadataValue):
        return [dict(record.data) for record in table.records]
    return [{name: _number(cell) for name, cell in row.items()} for row in markdown_rows(table.value)]


def markdown_rows(text: str) -> list[dict[str, str]]:
    """The rows of the table that a text begins with."""
    lines = [
        [re.sub(r"\\(.)", r"\1", cell.replace("&#124;", "|")) for cell in line.strip("| ").split(" | ")]
        for line in text.split("\n")
        if line.startswith("|")
    ]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def _number(cell: str) -> Any:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return cell


def pictures(metadata: dict[str, Any]) -> dict[str, bytes]:
    """The pictures inside an asset's metadata, by name."""
    values = {}
    for name, value in metadata.items():
        if isinstance(value, dg.MarkdownMetadataValue):
            match = re.fullmatch(r"!\[(.+)\]\(data:image/png;base64,(.+)\)", str(value.value))
            if match:
                values[name] = base64.b64decode(match[2])
    return values
