"""The command lines: Dagster's, its successor `dg`, and ours, each in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import orjson

from tests.defs.conftest import BINARIES, environment

ROOT = Path(__file__).parent.parent.parent


def run(config: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BINARIES / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        env={**environment(config), **variables},
        cwd=config.parent,
    )


def test_the_command_line_materialises_everything_and_the_summary_tells(config: Path) -> None:
    module = ("-m", "dagster_divorder.definitions")
    made = run(config, "dagster", "asset", "materialize", "--select", "*", *module)
    assert made.returncode == 0, made.stderr
    warnings = [line for line in made.stderr.splitlines() if "Warning" in line]
    assert "dagster_divorder" not in "".join(warnings)
    meta = orjson.loads((config.parent / "curated/curated_meta.json").read_bytes())
    assert meta["counts"]["records"] == 120
    summary = run(config, "divorder", "summary")
    assert summary.returncode == 0, summary.stderr
    for part in ("120 records", "original", "random", "curated", "clusters", str(config.parent / "curated")):
        assert part in summary.stdout


def test_bad_settings_stop_the_command_line_with_the_key(config: Path) -> None:
    found = run(config, "divorder", "summary", DIVORDER_CLUSTERS__KK="3")
    assert found.returncode == 1
    assert "nearest valid key is 'clusters.k'" in found.stderr
    assert "Traceback" not in found.stderr


def test_bad_input_fails_the_run_and_names_the_lines(config: Path) -> None:
    (config.parent / "docs.jsonl").write_text('{"text": "fine"}\n{"body": 1}\n')
    found = run(config, "divorder", "run")
    assert found.returncode == 1
    assert "1 of 2 records were refused (50.0%)" in found.stderr
    assert "docs.jsonl:2: no field 'text'" in found.stderr
    assert not list((config.parent / "store").rglob("*.arrow"))


def test_the_successor_of_the_command_line_launches_assets(config: Path) -> None:
    found = run(config, "dg", "launch", "--assets", "raw_docs", "--target-path", str(ROOT))
    assert found.returncode == 0, found.stderr
    assert "raw_docs: 120 documents, 120 new, 0 reused" in found.stderr
    assert "arning" not in found.stdout + found.stderr
