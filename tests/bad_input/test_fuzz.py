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


@pytest.mark.parametrize("loss", ["a record", "a byte"])
def test_the_check_finds_what_is_lost(fuzz: ModuleType, tmp_path: Path, loss: str) -> None:
    from dagster_divorder import run_all
    from dagster_divorder.engine.progress import Silent

    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(fuzz.fuzzed(200, seed=2)))
    receipt = run_all(fuzz.settings(tmp_path), Silent())["raw_docs"]
    fuzz.check(path.read_bytes(), tmp_path / "out", receipt)
    file = tmp_path / "out" / ("rejects.jsonl" if loss == "a reject" else "curated.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0][1:], *lines[1:]] if loss == "a byte" else lines[1:]))
    with pytest.raises(AssertionError):
        fuzz.check(path.read_bytes(), tmp_path / "out", receipt)
