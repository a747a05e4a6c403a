"""The command line on files as they come: a settings file, an input, what is printed, what is written."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder.cli import main
from tests.conftest import over, small_toml, topic_records

SOUND = [orjson.dumps(record) for record in topic_records(5)]
"""Twenty records that nothing is wrong with."""


@dataclass
class Outcome:
    """Exit status, what was printed to stderr, and the output folder."""

    status: int
    error: str
    output: Path

    @property
    def rejects(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in (self.output / "rejects.jsonl").read_bytes().splitlines()]

    @property
    def counts(self) -> dict[str, int]:
        return orjson.loads((self.output / "curated_meta.json").read_bytes())["counts"]


@pytest.fixture
def divorder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`divorder run` on tmp_path/in, with more lines of settings. Any error but ours fails the test as a traceback."""

    def run(*more: str, paths: str = "in", share: float = 1.0) -> Outcome:
        config = tmp_path / "divorder.toml"
        base = {
            "input": {"paths": [paths], "max_reject_share": share},
            "output": {"path": "out"},
            "advanced": {"token_dims": 8},
            "clusters": {"k": 3},
            "sequence": {"length": 64, "batch": 2},
        }
        config.write_text(small_toml(**over(base, tomllib.loads("\n".join(more)))))
        status = main(["--config", str(config), "run"])
        error = capsys.readouterr().err
        if status:
            assert status == 1
            assert error.startswith("divorder: ") or "\ndivorder: " in error, error
        return Outcome(status, error, tmp_path / "out")

    (tmp_path / "in").mkdir()
    return run
