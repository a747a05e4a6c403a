"""The commands of `dg`, the successor of Dagster's command line (which the tutorial runs): what they list, in this
process, which imports Dagster once; and a launch in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from dagster_dg_cli.cli import create_dg_cli

from tests.defs.conftest import run_command

ROOT = Path(__file__).parents[2]


def test_dg_lists_the_component() -> None:
    listed = CliRunner().invoke(create_dg_cli(), ["list", "components", "--json", "--target-path", str(ROOT)])
    entries = {entry["key"]: entry["summary"] for entry in json.loads(listed.stdout)["items"]}
    assert entries["dagster_divorder.DivOrderComponent"].startswith("Orders a corpus of training data")


def test_the_successor_of_the_command_line_launches_assets(config: Path) -> None:
    result = run_command(config, "dg", "launch", "--assets", "raw_docs", "--target-path", str(ROOT))
    assert result.returncode == 0, result.stderr
    assert "raw_docs: 120 documents, 120 new" in result.stderr
    assert "arning" not in result.stdout + result.stderr
