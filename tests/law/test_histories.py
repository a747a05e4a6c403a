"""Random histories over everything that decides what is trained on, a few of those of benchmarks/fuzz/histories.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
    for number in range(examples(3)):
        try:
            runs += histories.walk(number, tmp_path).runs
        except Exception as error:
            raise AssertionError(f"history {number}; python {PATH} --first {number} --histories 1") from error
    assert runs >= 6 * examples(3)
