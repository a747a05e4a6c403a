"""`dg`, the successor of Dagster's command line (which tests/ui runs), in a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.defs.conftest import run_command as run

ROOT = Path(__file__).parent.parent.parent


def test_the_successor_of_the_command_line_launches_assets(config: Path) -> None:
    result = run(config, "dg", "launch", "--assets", "raw_docs", "--target-path", str(ROOT))
    assert result.returncode == 0, result.stderr
    assert "raw_docs: 120 documents, 120 new" in result.stderr
    assert "arning" not in result.stdout + result.stderr
