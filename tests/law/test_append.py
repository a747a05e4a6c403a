"""What is noticed between two runs: nothing new, an append, a line still being written, and every other change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
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
        """Every file of store and output with its time of change; the lease apart, which each run signs."""
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes())
            for root in (self.settings.store.path, self.settings.output.path)
            for path in root.rglob("*")
            if path.is_file() and path.name != "lease"
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


def test_the_same_bytes_written_again_are_nothing_new(corpus: Corpus) -> None:
    corpus.run(joined(LINES))
    before = corpus.files()
    other = corpus.path.with_suffix(".new")
    other.write_bytes(corpus.path.read_bytes())
    os.utime(other, (0, 0))
    other.replace(corpus.path)
    figures = corpus.run()
    assert not figures["curated_output"]["written"]
    output = str(corpus.settings.output.path)
    after = corpus.files()
    assert {k: v for k, v in after.items() if k.startswith(output)} == {
        k: v for k, v in before.items() if k.startswith(output)
    }


def test_only_what_was_appended_is_new(corpus: Corpus) -> None:
    corpus.run(joined(LINES[:30]))
    assert new(corpus.append(joined(LINES[30:33]))) == {3}
    assert corpus.output == sorted(LINES[:33])


def test_a_line_still_being_written_is_left_for_the_run_that_finds_it_whole(corpus: Corpus) -> None:
    half = len(LINES[30]) // 2
    figures = corpus.run(joined([*LINES[:30], LINES[30][:half]], end=b""))
    assert (figures["raw_docs"]["records"], figures["raw_docs"]["partial_lines"]) == (30, 1)
    assert figures["raw_docs"]["rejected_records"] == 0
    figures = corpus.append(LINES[30][half:-1])
    assert (figures["raw_docs"]["records"], figures["raw_docs"]["partial_lines"]) == (30, 1)
    figures = corpus.append(LINES[30][-1:] + b"\n")
    assert new(figures) == {1}
    assert (figures["raw_docs"]["records"], figures["raw_docs"]["partial_lines"]) == (31, 0)
    assert corpus.output == sorted(LINES[:31])


def test_a_character_cut_in_its_middle_is_a_line_still_being_written(corpus: Corpus) -> None:
    line = '{"text": "naïve"}'.encode()
    cut = line.index(b"\xaf")
    assert corpus.run(joined([*LINES[:30], line[:cut]], end=b""))["raw_docs"]["partial_lines"] == 1
    assert new(corpus.append(line[cut:])) == {1}
    assert corpus.output == sorted([*LINES[:30], line])


def test_a_whole_record_without_newline_is_one_and_its_newline_changes_nothing(corpus: Corpus) -> None:
    figures = corpus.run(joined(LINES[:31], end=b""))
    assert (figures["raw_docs"]["records"], figures["raw_docs"]["partial_lines"]) == (31, 0)
    first = (corpus.settings.output.path / "curated.jsonl").read_bytes()
    assert new(corpus.append(b"\n")) == {0}
    assert (corpus.settings.output.path / "curated.jsonl").read_bytes() == first


def test_a_whole_record_without_newline_that_grows_is_an_edit(corpus: Corpus) -> None:
    corpus.run(joined(LINES[:31], end=b""))
    # The record turns into a line that is none, then the line into another record.
    figures = corpus.run(corpus.path.read_bytes() + b" trailing\n")
    assert (figures["raw_docs"]["records"], figures["raw_docs"]["rejected_records"]) == (30, 1)
    assert corpus.output == sorted(LINES[:30])
    assert corpus.run(joined(LINES[:31]))["raw_docs"]["new_documents"] == 0
    assert corpus.output == sorted(LINES[:31])


def test_truncation_is_noticed_even_in_the_middle_of_a_line(corpus: Corpus) -> None:
    corpus.run(joined(LINES))
    size = len(joined(LINES[:20])) + 10
    os.truncate(corpus.path, size)
    figures = corpus.run()
    assert new(figures) == {0}
    assert (figures["raw_docs"]["records"], figures["raw_docs"]["partial_lines"]) == (20, 1)
    assert corpus.output == sorted(LINES[:20])


def test_truncation_followed_by_growth_beyond_the_old_size_is_noticed(corpus: Corpus) -> None:
    corpus.run(joined(LINES[:30]))
    other = [orjson.dumps(record) for record in topic_records(12, start=700)]
    assert new(corpus.run(joined([*LINES[:10], *other]))) == {48}
    assert corpus.output == sorted([*LINES[:10], *other])


@pytest.mark.parametrize("count", [5, 30, 40], ids=["smaller", "as many lines", "larger"])
def test_rotation_is_noticed(corpus: Corpus, count: int) -> None:
    corpus.run(joined(LINES[:30]))
    rotated = [orjson.dumps(record) for record in topic_records(10, start=900)][:count]
    corpus.path.rename(corpus.path.with_suffix(".1"))
    assert new(corpus.run(joined(rotated))) == {count}
    assert corpus.output == sorted(rotated)
    # And back: all of it is known.
    corpus.path.with_suffix(".1").replace(corpus.path)
    assert new(corpus.run()) == {0}
    assert corpus.output == sorted(LINES[:30])


def test_an_edit_of_the_same_size_and_time_before_an_append_is_noticed(corpus: Corpus) -> None:
    corpus.run(joined(LINES[:30]))
    times = corpus.path.stat()
    edited = LINES[3].replace(b"sea", b"SEA")
    assert len(edited) == len(LINES[3])
    lines = [*LINES[:3], edited, *LINES[4:30]]
    corpus.path.write_bytes(joined(lines))
    os.utime(corpus.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert corpus.path.stat().st_size == times.st_size
    assert new(corpus.run()) == {1}
    assert corpus.output == sorted(lines)
    assert new(corpus.run(joined([LINES[0].replace(b"sea", b"Sea"), *lines[1:], LINES[31]]))) == {2}


def test_an_edit_of_a_field_beside_the_text_computes_no_document(corpus: Corpus) -> None:
    corpus.run(joined(LINES[:30]))
    edited = LINES[3].replace(b"sea.example", b"SEA.example")
    lines = [*LINES[:3], edited, *LINES[4:30]]
    figures = corpus.run(joined(lines))
    assert new(figures) == {0}
    assert figures["raw_docs"]["new_records"] == 1
    assert corpus.output == sorted(lines)


def test_line_ends_alone_change_the_output_not_at_all(corpus: Corpus) -> None:
    corpus.run(joined(LINES[:30]))
    first = (corpus.settings.output.path / "curated.jsonl").read_bytes()
    figures = corpus.run(b"\xef\xbb\xbf" + b"\r\n\r\n".join(LINES[:30]))
    assert (new(figures), figures["raw_docs"]["new_records"]) == ({0}, 0)
    assert (corpus.settings.output.path / "curated.jsonl").read_bytes() == first
