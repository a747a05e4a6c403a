"""The commands of `dg`, the successor of Dagster's command line (which tests/ui runs): what they list and write, in
this process, which imports Dagster once; and a launch in a process of its own."""

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

from tests.conftest import topic_records, write_jsonl
from tests.defs.conftest import run_command

TYPE = "dagster_divorder.DivOrderComponent"
PYPROJECT = """
[project]
name = "shop"
requires-python = ">=3.10,<3.15"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.cli]
suppress_warnings = ["project_and_activated_venv_mismatch"]

[tool.dg.project]
root_module = "shop"
registry_modules = ["shop.components.*"]
"""
DEFINITIONS = """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
Dg = Callable[..., Result]


@pytest.fixture
def dg_command(tmp_path: Path) -> Dg:
    """Runs a command of `dg` in a project as `create-dagster project` makes it, which is on the path as an installed
    one is, with a corpus."""
    files = {
        "pyproject.toml": PYPROJECT,
        "src/shop/__init__.py": "",
        "src/shop/components/__init__.py": "",
        "src/shop/definitions.py": DEFINITIONS,
        "src/shop/defs/__init__.py": "",
    }
    for name, content in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    write_jsonl(tmp_path / "data/blog.jsonl", topic_records(20))

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


def test_dg_lists_the_component_and_writes_one_that_it_finds_valid(tmp_path: Path, dg_command: Dg) -> None:
    listed = json.loads(dg_command("list", "components", "--json").stdout)
    (ours,) = [entry for entry in listed["items"] if entry["key"] == TYPE]
    assert ours["summary"].startswith("Orders a corpus of training data")
    written = dg_command("scaffold", "defs", TYPE, "corpora/forum", "--paths", "data/blog.jsonl")
    assert written.exit_code == 0, written.stdout + written.stderr
    file = tmp_path / "src/shop/defs/corpora/forum/defs.yaml"
    attributes = {"config": "divorder.toml", "key_prefix": "forum"}
    assert yaml.safe_load(file.read_text())["attributes"] == attributes
    checked = dg_command("check", "defs")
    assert checked.exit_code == 0, checked.stdout + checked.stderr


def test_the_successor_of_the_command_line_launches_assets(config: Path) -> None:
    root = Path(__file__).parents[2]
    result = run_command(config, "dg", "launch", "--assets", "raw_docs", "--target-path", str(root))
    assert result.returncode == 0, result.stderr
    assert "raw_docs: 120 documents, 120 new" in result.stderr
    assert "arning" not in result.stdout + result.stderr
