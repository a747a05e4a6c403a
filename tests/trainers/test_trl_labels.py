"""Labels of conversations are those that TRL's own tokenisation and collator give, id by id."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

TEMPLATES = ("gemma", "glm4moe", "llama3", "phi3", "qwen2_5", "qwen3")
SCRIPT = Path(__file__).parents[2] / "benchmarks/chats/trl_labels.py"
OTHER_TURNS = {"glm4moe", "qwen2_5", "qwen3"}
"""Templates to which TRL's training templates add trained text: the end of a turn, a line feed, empty thoughts."""


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    pytest.importorskip("trl")
    spec = importlib.util.spec_from_file_location("trl_labels", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", TEMPLATES)
def test_labels_are_those_of_trl(name: str, benchmark: ModuleType, tmp_path: Path) -> None:
    row = benchmark.compare(name, tmp_path, benchmark.conversations(12))
    assert row["marks"] == row["completion"] == row["text"] == "12 of 12"
    assert (row["own"] == "12 of 12") == (name not in OTHER_TURNS)
