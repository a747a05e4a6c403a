"""The commands of `dg` in a project: what they list, write and refuse. They run in this process, which imports Dagster
once; tests/ui/test_project.py and test_command_line.py start `dg`."""

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


def test_dg_refuses_a_corpus_that_is_not_there_and_writes_nothing(tmp_path: Path, dg_command: Dg) -> None:
    defs = make_project(tmp_path)
    refused = dg_command("scaffold", "defs", TYPE, "forum", "--paths", "data/forum.jsonl")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("Error: input.paths: no file matches 'data/forum.jsonl'; expected")
    assert not (defs / "forum").exists()


def test_dg_says_in_a_sentence_what_is_wrong_with_a_component(tmp_path: Path, dg_command: Dg) -> None:
    defs = make_project(tmp_path)
    file = defs / "corpora/blog/defs.yaml"
    file.write_text(file.read_text().replace("clusters: {k: 4}", "clusters: {kk: 4}"))
    checked = dg_command("check", "defs")
    assert checked.exit_code == 1
    said = checked.stdout + checked.stderr
    first = next(line for line in said.splitlines() if "Exception" in line)
    assert f"{file}: {file} or the environment: unknown key 'clusters.kk'" in first
    # Of several components of a type Dagster looks at the last one's attributes.
    for name in ("blog", "news"):
        other = defs / f"corpora/{name}/defs.yaml"
        other.write_text(other.read_text().replace(f"key_prefix: {name}", f"prefix: {name}"))
    checked = dg_command("check", "yaml")
    assert checked.exit_code == 1
    assert "Additional properties are not allowed ('prefix' was unexpected)" in checked.stdout
