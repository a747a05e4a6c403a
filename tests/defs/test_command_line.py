"""Our command line, and `dg`, the successor of Dagster's (which tests/ui runs), in processes of their own."""

from __future__ import annotations

from pathlib import Path

from tests.defs.conftest import run_command as run

ROOT = Path(__file__).parent.parent.parent


def test_bad_settings_stop_the_command_line_with_the_key(config: Path) -> None:
    found = run(config, "divorder", "summary", DIVORDER_CLUSTERS__KK="3")
    assert found.returncode == 1
    assert "nearest valid key is 'clusters.k'" in found.stderr
    assert "Traceback" not in found.stderr


def test_bad_input_fails_the_run_and_names_the_lines(config: Path) -> None:
    (config.parent / "docs.jsonl").write_text('{"text": "fine", "source": "web"}\n{"body": 1}\n')
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
