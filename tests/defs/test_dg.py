"""The commands of `dg` in a project: what they list and write. They run in this process, which imports Dagster
once; tests/ui/test_dagster_dev.py and test_command_line.py start `dg`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from dagster_dg_cli.cli import create_dg_cli

from tests.defs.dg_project import make_project

TYPE = "dagster_divorder.DivOrderComponent"
Dg = Callable[..., Result]


@pytest.fixture
def dg_command(tmp_path: Path) -> Dg:
    """Runs a command of `dg` in the project, which is on the path as an installed one is."""

    def run(*arguments: str) -> Result:
        with contextlib.chdir(tmp_path), pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / "src"))
            patch.setenv("COLUMNS", "300")
            patch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
            try:
                return CliRunner().invoke(create_dg_cli(), arguments)
            finally:
                for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
                    del sys.modules[name]

    return run


def test_dg_lists_the_component_with_its_attributes(tmp_path: Path, dg_command: Dg) -> None:
    make_project(tmp_path)
    listed = json.loads(dg_command("list", "components", "--json").stdout)
    (ours,) = [entry for entry in listed["items"] if entry["key"] == TYPE]
    assert ours["summary"].startswith("Orders a corpus of training data")


def test_dg_writes_a_component_that_it_finds_valid(tmp_path: Path, dg_command: Dg) -> None:
    defs = make_project(tmp_path)
    written = dg_command("scaffold", "defs", TYPE, "corpora/forum", "--paths", "data/blog.jsonl")
    assert written.exit_code == 0, written.stdout + written.stderr
    assert yaml.safe_load((defs / "corpora/forum/defs.yaml").read_text())["attributes"] == {
        "config": "divorder.toml",
        "key_prefix": "forum",
    }
    (tmp_path / "data/news.jsonl").write_text('{"text": "a", "source": "b"}\n')
    checked = dg_command("check", "defs")
    assert checked.exit_code == 0, checked.stdout + checked.stderr
