"""A per-document stage whose calls leave a line each, so that tests see what is computed, and how often."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder.corpus import cut, inputs
from dagster_divorder.corpus.stored import Records
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.run import run_graph
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.raw_docs import RAW_DOCS
from dagster_divorder.store.view import Fragment
from tests.conftest import topic_records, write_jsonl


@dataclass(frozen=True)
class CountLetters:
    records: Records
    log: str

    def __call__(self, fragment: Fragment) -> dict[str, np.ndarray]:
        log = os.open(self.log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(log, f"{fragment.name}\n".encode())
        os.close(log)
        texts = self.records.texts(fragment).to_pylist()
        return {"letters": np.array([len(text) for text in texts], np.int64)}


LETTERS = PerDocument(
    name="letters",
    version=1,
    description="Letters of each document.",
    reads=("raw_docs",),
    compute=lambda run: CountLetters(run.records, f"{run.settings.store.path}.log"),
    needs=lambda run, fragments: {},
)

GRAPH = Graph(("raw_docs", "letters"), {"raw_docs": RAW_DOCS, "letters": LETTERS}.__getitem__)


def corpus(folder: Path) -> Path:
    """A corpus that makes some twenty fragments in this process."""
    inputs.BLOCK_BYTES, cut.HARD_LINES = 1024, 10
    return write_jsonl(folder / "docs.jsonl", topic_records())


def settings(folder: Path, store: str, **engine: Any) -> Settings:
    return Settings.model_validate(
        {
            "input": {"paths": (str(folder / "docs.jsonl"),)},
            "store": {"path": folder / store},
            "output": {"path": folder / f"{store}-output"},
            "engine": engine,
        }
    )


def run_letters(of: Settings, progress: Any) -> None:
    run_graph(GRAPH, of, progress, ("raw_docs", "letters"))


def calls(of: Settings) -> list[str]:
    """Fragments that calls were made on."""
    path = Path(f"{of.store.path}.log")
    return path.read_text().split() if path.exists() else []


def stored(of: Settings) -> dict[str, bytes]:
    """Fragment -> result."""
    folder = Path(of.store.path) / "stages/letters"
    return {file.name.split(".")[0]: file.read_bytes() for file in folder.rglob("*.safetensors")}
