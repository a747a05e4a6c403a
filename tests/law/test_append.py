"""What is noticed between two runs: nothing new, and a line that is still being written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.store.base import LOCK_FILE
from tests.conftest import topic_records

Make = Callable[..., Settings]
LINES = [orjson.dumps(record) for record in topic_records(10)]
PER_DOCUMENT = ("token_counts", "shallow_embeddings", "clusters")


class Corpus:
    """One input file and runs on it."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self.settings = settings

    def run(self, data: bytes | None = None) -> dict[str, dict[str, Any]]:
        if data is not None:
            self.path.write_bytes(data)
        return {stage: receipt.figures for stage, receipt in run_all(self.settings, Silent()).items()}

    def append(self, data: bytes) -> dict[str, dict[str, Any]]:
        with open(self.path, "ab") as file:
            file.write(data)
        return self.run()

    @property
    def output(self) -> list[bytes]:
        return sorted((self.settings.output.path / "curated.jsonl").read_bytes().splitlines())

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Every file of store and output with its time of change; the lock apart, which each run signs."""
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for root in (self.settings.store.path, self.settings.output.path)
            for path in root.rglob("*")
            if path.is_file() and path.name != LOCK_FILE
        }


@pytest.fixture
def corpus(tmp_path: Path, make_settings: Make) -> Corpus:
    path = tmp_path / "docs.jsonl"
    chosen = make_settings(refit={"clusters": "never"}, input={"paths": [str(path)], "max_reject_share": 0.1})
    return Corpus(path, chosen)


def joined(lines: list[bytes], end: bytes = b"\n") -> bytes:
    return b"\n".join(lines) + end


def new(figures: dict[str, dict[str, Any]]) -> set[int]:
    """New documents, by all the stages that count them."""
    return {figures[stage]["new_documents"] for stage in ("raw_docs", *PER_DOCUMENT)}


def test_nothing_new_computes_nothing_and_touches_no_file_but_the_state(corpus: Corpus) -> None:
    corpus.run(joined(LINES))
    before = corpus.files()
    figures = corpus.run()
    assert {of["new_documents"] for of in figures.values()} == {0}
    after = corpus.files()
    changed = {Path(name).name.partition(".")[0] for name, _ in after.items() ^ before.items()}
    assert changed == {"state"}, "it says how long this run took"


def test_a_character_cut_in_its_middle_is_a_line_still_being_written(corpus: Corpus) -> None:
    line = '{"text": "naïve"}'.encode()
    cut = line.index(b"\xaf")
    assert corpus.run(joined([*LINES[:30], line[:cut]], end=b""))["raw_docs"]["partial_lines"] == 1
    assert new(corpus.append(line[cut:])) == {1}
    assert corpus.output == sorted([*LINES[:30], line])
