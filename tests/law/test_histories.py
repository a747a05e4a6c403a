"""Random histories over everything that decides what is trained on, a few of those of benchmarks/fuzz/histories.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dagster_divorder.stages import repeats
from tests.conftest import examples

PATH = Path(__file__).parents[2] / "benchmarks/fuzz/histories.py"


@pytest.fixture(scope="module")
def histories() -> ModuleType:
    spec = importlib.util.spec_from_file_location("histories", PATH)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["histories"] = module  # where its classes look for their annotations
    spec.loader.exec_module(module)
    return module


def test_nothing_is_lost_in_any_history(histories: ModuleType, tmp_path: Path) -> None:
    runs = 0
    for number in range(examples(8)):
        try:
            runs += histories.walk(number, tmp_path).runs
        except Exception as error:
            raise AssertionError(f"history {number}; python {PATH} --first {number} --histories 1") from error
    assert runs >= 6 * examples(8)


def test_a_lost_record_is_found(
    histories: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the walk finds what it looks for: a stream without what is consumed, which a mix once left out."""
    monkeypatch.setattr(repeats, "consumed_times", lambda run: np.zeros(len(run.view), np.int64))
    with pytest.raises(AssertionError, match="what is consumed is there, and refused"):
        for number in range(60):
            histories.walk(number, tmp_path)
