"""A file that has grown goes on where it was read to; any other file is read again. Hashes decide, never times."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder import run_stage
from dagster_divorder.corpus import file_states
from dagster_divorder.corpus.file_states import (
    FileState,
    KnownFiles,
    PrefixHashes,
    head_of,
    load_file_states,
    save_file_states,
)
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import View
from tests.conftest import examples

Make = Callable[..., Settings]
CHUNK = 64
LINES = [orjson.dumps({"text": f"document {number} " + "x" * (number % 50)}) for number in range(60)]
BAD = b'{"no": "text"}'


def joined(lines: list[bytes], end: bytes = b"\n") -> bytes:
    return b"\n".join(lines) + end


def told(receipt: Receipt) -> dict[str, Any]:
    return {**receipt.facts, **receipt.figures}


class Corpus:
    """A folder of input files; each `read` is compared with one into a fresh store."""

    def __init__(self, folder: Path, make_settings: Make) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        self.make = make_settings
        self.fresh = 0

    def settings(self, store: str) -> Settings:
        paths = {"paths": [str(self.folder)], "max_reject_share": 0.5}
        return self.make(input=paths, store={"path": self.folder.parent / store})

    def __setitem__(self, name: str, data: bytes) -> None:
        (self.folder / name).write_bytes(data)

    def read(self) -> dict[str, Any]:
        """Facts and figures of raw_docs; what they come to is what a fresh store comes to."""
        receipt = run_stage("raw_docs", self.settings("store"), Silent())
        self.fresh += 1
        scratch = run_stage("raw_docs", self.settings(f"fresh{self.fresh}"), Silent())
        figures, expected = told(receipt), told(scratch)
        assert expected["recognised_by"] == "rescan"
        for name in (
            "records",
            "documents",
            "rejected_records",
            "partial_lines",
            "text_bytes",
            "files",
            "file_bytes",
        ):
            assert figures[name] == expected[name], name
        assert receipt.version == scratch.version
        assert self.rejects(receipt, "store") == self.rejects(scratch, f"fresh{self.fresh}")
        assert self.records(receipt, "store") == self.records(scratch, f"fresh{self.fresh}")
        return figures

    def rejects(self, receipt: Receipt, store: str) -> bytes:
        return LocalStore(self.folder.parent / store).read_verified(receipt.files["rejects"])

    def records(self, receipt: Receipt, store: str) -> list[bytes]:
        from dagster_divorder.store.fragments import read_content

        opened = LocalStore(self.folder.parent / store)
        view = View.load(opened, receipt.files["view"])
        content = [value for f in view.records for value in read_content(opened, f.file).to_pylist()]
        return [content[row] for row in view.record_row]


@pytest.fixture(params=["whole", "tail and samples"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to recognise a prefix, on files of some chunks; of the second all chunks are samples."""
    monkeypatch.setattr(file_states, "CHUNK_BYTES", CHUNK)
    if request.param != "whole":
        monkeypatch.setattr(file_states, "WHOLE_BYTES", 0)
    return str(request.param)


@pytest.fixture
def corpus(tmp_path: Path, make_settings: Make, way: str) -> Corpus:
    return Corpus(tmp_path, make_settings)


def test_an_append_is_read_from_the_old_end(corpus: Corpus, way: str) -> None:
    corpus["a.jsonl"] = joined(LINES[:40])
    assert corpus.read()["recognised_by"] == "rescan"
    corpus["a.jsonl"] = joined(LINES[:43])
    figures = corpus.read()
    assert (figures["recognised_by"], figures["recognised_bytes"]) == (way, len(joined(LINES[:40])))
    assert (figures["records"], figures["new_records"]) == (43, 3)
    corpus["a.jsonl"] = joined(LINES[:44])
    figures = corpus.read()
    assert (figures["recognised_bytes"], figures["new_records"]) == (len(joined(LINES[:43])), 1)


def test_only_the_appended_bytes_are_parsed(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster_divorder.corpus import blocks

    seen: list[bytes] = []
    parse = blocks.parse_lines
    monkeypatch.setattr(blocks, "parse_lines", lambda lines, field: seen.extend(lines) or parse(lines, field))
    corpus["a.jsonl"] = joined([*LINES[:40], BAD])
    corpus.read()
    run_stage("raw_docs", corpus.settings("store"), Silent())
    seen.clear()
    corpus["a.jsonl"] = joined([*LINES[:40], BAD, *LINES[40:42]])
    figures = told(run_stage("raw_docs", corpus.settings("store"), Silent()))
    # The refused line of the prefix is not looked at again.
    assert seen == LINES[40:42]
    assert figures["rejected_records"] == 1


def test_a_partial_line_is_left_and_read_when_it_is_whole(corpus: Corpus, way: str) -> None:
    whole = joined(LINES[:30])
    corpus["a.jsonl"] = whole + LINES[30][:9]
    assert corpus.read()["partial_lines"] == 1
    corpus["a.jsonl"] = whole + LINES[30][:12]
    figures = corpus.read()
    assert (figures["partial_lines"], figures["recognised_bytes"]) == (1, len(whole))
    corpus["a.jsonl"] = whole + LINES[30] + b"\n" + LINES[31]
    figures = corpus.read()
    assert (figures["records"], figures["partial_lines"], figures["recognised_bytes"]) == (32, 0, len(whole))
    # A last line without newline is a record, and no part of the prefix: it may grow.
    corpus["a.jsonl"] = whole + LINES[30] + b"\n" + LINES[31] + b" and more\n"
    figures = corpus.read()
    assert (figures["records"], figures["rejected_records"]) == (31, 1)
    assert figures["recognised_bytes"] == len(joined(LINES[:31]))


@pytest.mark.parametrize("at", [0, 3, 20, 38, 39])
def test_an_edit_of_the_same_length_before_an_append_is_noticed(corpus: Corpus, at: int) -> None:
    corpus["a.jsonl"] = joined(LINES[:40])
    corpus.read()
    times = os.stat(corpus.folder / "a.jsonl")
    edited = [*LINES[:at], LINES[at].replace(b"document", b"DOCUMENT"), *LINES[at + 1 : 41]]
    corpus["a.jsonl"] = joined(edited)
    os.utime(corpus.folder / "a.jsonl", ns=(times.st_atime_ns, times.st_mtime_ns))
    figures = corpus.read()
    assert (figures["recognised_by"], figures["new_records"]) == ("rescan", 2)


def test_truncation_and_rotation_are_read_again(corpus: Corpus) -> None:
    corpus["a.jsonl"] = joined(LINES[:40])
    corpus.read()
    corpus["a.jsonl"] = joined(LINES[:40])[:-30]
    figures = corpus.read()
    assert (figures["recognised_by"], figures["records"], figures["partial_lines"]) == ("rescan", 39, 1)
    corpus["a.jsonl"] = joined(LINES[40:])
    figures = corpus.read()
    assert (figures["recognised_by"], figures["new_records"]) == ("rescan", 20)


def test_renamed_added_and_repeated_files_are_known_by_their_content(corpus: Corpus, way: str) -> None:
    first, second = joined([*LINES[:20], BAD]), joined([*LINES[20:40], BAD, BAD])
    corpus["b.jsonl"], corpus["c.jsonl"] = first, second
    corpus.read()
    # Rotated: each name has another's content. Rejects name the new path.
    (corpus.folder / "c.jsonl").rename(corpus.folder / "d.jsonl")
    (corpus.folder / "b.jsonl").rename(corpus.folder / "c.jsonl")
    corpus["b.jsonl"] = joined([LINES[50], BAD])
    figures = corpus.read()
    assert (figures["recognised_by"], figures["recognised_bytes"]) == (way, len(first + second))
    assert (figures["new_records"], figures["rejected_records"]) == (1, 4)
    # A file in front moves every position; copies of a file are known twice.
    corpus["a.jsonl"] = second + joined(LINES[55:57])
    corpus["e.jsonl"] = second
    figures = corpus.read()
    assert figures["recognised_bytes"] == len(first + 3 * second + joined([LINES[50], BAD]))
    assert (figures["new_records"], figures["documents"]) == (2, 43)


def test_too_many_rejects_say_the_same_of_a_prefix_as_of_a_file(corpus: Corpus) -> None:
    from dagster_divorder.errors import RejectLimitError

    corpus["a.jsonl"] = joined([*LINES[:20], *[BAD] * 15])
    corpus.read()
    corpus["a.jsonl"] = joined([*LINES[:20], *[BAD] * 25])
    messages = []
    for store in ("store", "other"):
        with pytest.raises(RejectLimitError) as caught:
            run_stage("raw_docs", corpus.settings(store), Silent())
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "a.jsonl:21: no field 'text'" in messages[0]


def test_compressed_and_parquet_files_are_known_only_if_unchanged(corpus: Corpus, way: str) -> None:
    corpus["a.jsonl.gz"] = gzip.compress(joined([*LINES[:20], BAD]), mtime=0)
    corpus["b.jsonl"] = joined(LINES[20:22])
    corpus.read()
    figures = corpus.read()
    size = figures["file_bytes"] if way == "whole" else len(joined(LINES[20:22]))
    assert (figures["recognised_by"], figures["recognised_bytes"]) == (way, size)
    corpus["a.jsonl.gz"] = gzip.compress(joined([*LINES[:20], BAD, LINES[30]]), mtime=0)
    figures = corpus.read()
    assert (figures["recognised_bytes"], figures["new_records"]) == (len(joined(LINES[20:22])), 1)


def test_parquet_columns_and_their_metadata_are_the_first_files(corpus: Corpus, way: str) -> None:
    def write(name: str, low: int, metadata: bytes) -> None:
        schema = pa.schema([("text", pa.large_string())], metadata={b"made by": metadata})
        pq.write_table(
            pa.table({"text": [f"t{n}" for n in range(low, low + 9)]}, schema=schema), corpus.folder / name
        )

    def schema() -> Any:
        receipt = run_stage("raw_docs", corpus.settings("store"), Silent())
        data = LocalStore(corpus.settings("store").store.path).read_verified(receipt.files["schema"])
        return pa.ipc.read_schema(pa.py_buffer(data)).metadata

    write("b.parquet", 0, b"b")
    assert corpus.read()["records"] == 9
    write("a.parquet", 9, b"a")
    figures = corpus.read()
    assert figures["recognised_by"] == ("whole" if way == "whole" else "rescan")
    assert schema() == {b"made by": b"a"}
    (corpus.folder / "a.parquet").unlink()
    corpus.read()
    assert schema() == {b"made by": b"b"}


def test_a_store_without_readings_or_with_other_chunks_reads_everything(
    corpus: Corpus, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus["a.jsonl"] = joined(LINES[:40])
    corpus.read()
    monkeypatch.setattr(file_states, "CHUNK_BYTES", CHUNK + 1)
    assert corpus.read()["recognised_by"] == "rescan"
    assert corpus.read()["recognised_by"] == way


def test_samples_miss_an_edit_between_them_that_keeps_the_length_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_states, "CHUNK_BYTES", 4)
    monkeypatch.setattr(file_states, "SAMPLES", 3)
    path = tmp_path / "x"
    data = bytearray(range(41))
    path.write_bytes(data)
    with open(path, "rb", buffering=0) as file:
        prefix = PrefixHashes.of_all(file)
        state = FileState("x", prefix.size, 0, head_of(file), prefix.chunks)
    missed = []
    for at in range(len(data)):
        path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
        with open(path, "rb", buffering=0) as file:
            assert KnownFiles([state], 0).unchanged(file, "x") is None
            known = KnownFiles([state], file_states.WHOLE_BYTES + 1)
            if known.unchanged(file, "x"):
                missed.append(at // 4)
    # Of eleven chunks the samples are 0, 4 and 8, the tail 9 and 10.
    assert sorted(set(missed)) == [1, 2, 3, 5, 6, 7]
    for moved in (data[:9] + b"?" + data[9:], data[:9] + data[10:] + b"?" * 9, data[:-1]):
        path.write_bytes(moved)
        with open(path, "rb", buffering=0) as file:
            assert KnownFiles([state], file_states.WHOLE_BYTES + 1).unchanged(file, "x") is None


@settings(deadline=None, max_examples=examples(25))
@given(parts=st.lists(st.binary(max_size=20), max_size=8), chunk=st.integers(1, 9))
def test_a_prefix_is_the_same_however_it_was_read(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("prefix")
    store = LocalStore(folder / "store").open()
    before, file_states.CHUNK_BYTES = file_states.CHUNK_BYTES, chunk
    try:
        grown = PrefixHashes()
        for number, part in enumerate(parts):
            grown.update(part)
            (folder / "x").write_bytes(b"".join(parts[: number + 1]))
            with open(folder / "x", "rb", buffering=0) as file:
                whole = PrefixHashes.of_all(file)
                assert (grown.size, grown.chunks) == (whole.size, whole.chunks)
                if grown.size:
                    state = FileState("x", grown.size, number, head_of(file), grown.chunks, refused=number)
                    (loaded,) = load_file_states(store, save_file_states(store, [state]))
                    assert loaded == state
                    resumed = PrefixHashes.unchanged(file, loaded, range(len(loaded.chunks) // 16))
                    assert resumed is not None
                    assert (resumed.size, resumed.lines, resumed.chunks) == (grown.size, number, grown.chunks)
                    grown = resumed
    finally:
        file_states.CHUNK_BYTES = before
