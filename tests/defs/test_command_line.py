"""Our command line, and `dg`, the successor of Dagster's (which tests/ui runs), in processes of their own."""

from __future__ import annotations

from pathlib import Path

from tests.defs.conftest import run_command as run

ROOT = Path(__file__).parent.parent.parent


def test_bad_settings_stop_the_command_line_with_the_key(config: Path) -> None:
    result = run(config, "divorder", "summary", DIVORDER_CLUSTERS__KK="3")
    assert result.returncode == 1
    assert "nearest valid key is 'clusters.k'" in result.stderr
    assert "Traceback" not in result.stderr


def test_bad_input_fails_the_run_and_names_the_lines(config: Path) -> None:
    (config.parent / "docs.jsonl").write_text('{"text": "fine", "source": "web"}\n{"body": 1}\n')
    result = run(config, "divorder", "run")
    assert result.returncode == 1
    assert "1 of 2 records were refused (50.0%)" in result.stderr
    assert "docs.jsonl:2: no field 'text'" in result.stderr
    assert not list((config.parent / "store").rglob("*.arrow"))


def test_the_successor_of_the_command_line_launches_assets(config: Path) -> None:
    result = run(config, "dg", "launch", "--assets", "raw_docs", "--target-path", str(ROOT))
    assert result.returncode == 0, result.stderr
    assert "raw_docs: 120 documents, 120 new, 0 reused" in result.stderr
    assert "arning" not in result.stdout + result.stderr
