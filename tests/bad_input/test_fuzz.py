"""Damaged lines by the thousand: none lost, none altered, none stops the run (a million: benchmarks/fuzz/fuzz.py)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "benchmarks/fuzz/fuzz.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_10_000_damaged_lines_are_each_accepted_whole_or_refused_whole(
    fuzz: ModuleType, tmp_path: Path
) -> None:
    counts = fuzz.run(tmp_path, lines=10_000, seed=1)
    assert counts["lines"] > 9_500
    assert counts["rejected"] > 2_000
    for line in (tmp_path / "out/curated.jsonl").read_bytes().split(b"\n")[:-1]:
        # Another parser agrees on every line that was accepted.
        assert json.loads(line)["text"].encode()
