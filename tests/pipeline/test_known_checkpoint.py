"""A checkpoint that nobody touched is known again without being read; its content alone names what comes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder.engine.progress import Silent
from dagster_divorder.models import checkpoint
from dagster_divorder.settings import Settings
from dagster_divorder.stages import run_all
from dagster_divorder.stages.topics import deep_model
from dagster_divorder.store.state import Receipt
from tests.conftest import topic_records, write_jsonl
from tests.tiny_models import save_model, save_tokenizer

Make = Callable[..., Settings]
STAGES = ("raw_docs", "base_model", "token_counts", "deep_model", "deep_embeddings")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tokenizer(save_model(tmp_path / "llama"))


@pytest.fixture
def settings(tmp_path: Path, folder: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch) -> Settings:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(5))
    # Files that were written a moment ago are trusted.
    monkeypatch.setattr(checkpoint, "SETTLED_NS", 0)
    return make_settings(model={"base": str(folder)})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What of a checkpoint is read to tell which one it is."""
    said: list[str] = []

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given: said.append(name) or function(*given))

    watch(checkpoint, "table_fingerprint")
    watch(deep_model, "checkpoint_fingerprint")
    return said


def run(settings: Settings) -> dict[str, Receipt]:
    return run_all(settings, Silent(), STAGES)


def test_a_run_with_nothing_new_does_not_read_the_weights(settings: Settings, read: list[str]) -> None:
    first = run(settings)
    assert read == ["table_fingerprint", "checkpoint_fingerprint"]
    second = run(settings)
    assert len(read) == 2
    assert [made.version for made in first.values()] == [made.version for made in second.values()]


def test_other_bytes_of_the_same_size_and_time_are_noticed(settings: Settings, folder: Path) -> None:
    first = run(settings)
    weights = folder / "model.safetensors"
    times = weights.stat()
    weights.write_bytes(save_model(folder.parent / "other", seed=1).joinpath(weights.name).read_bytes())
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert weights.stat().st_size == times.st_size
    second = run(settings)
    assert second["base_model"].figures["fitted"] == "what it reads has changed"
    assert second["deep_embeddings"].version != first["deep_embeddings"].version


@pytest.mark.parametrize("deep", [{}, {"model": "org/deep@v2"}])
def test_revisions_are_asked_for(
    settings: Settings,
    folder: Path,
    make_settings: Make,
    monkeypatch: pytest.MonkeyPatch,
    deep: dict[str, str],
) -> None:
    asked: list[str] = []

    def locate(base: str, **_: Any) -> Path:
        asked.append(base)
        return folder

    monkeypatch.setattr(checkpoint, "locate", locate)
    monkeypatch.setattr(deep_model, "locate", locate)
    run(make_settings(model={"base": "org/base@v1"}, deep=deep))
    wanted = ["org/base@v1", deep.get("model", "org/base@v1")]
    # Once before the first stage, to see that they are there, and once by the stages.
    assert asked == [*wanted, *wanted]
