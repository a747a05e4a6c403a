"""Ingest: every record comes out as it went in, once stored however often it is there; refusals are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.corpus import ingest as ingest_module
from dagster_divorder.corpus.blocks import BlockRecords
from dagster_divorder.corpus.corpus import InputFile
from dagster_divorder.corpus.ingest import Ingest, Ingested
from dagster_divorder.corpus.inputs import LineBlock
from dagster_divorder.corpus.shapes import DEFAULT_SHAPE
from dagster_divorder.errors import InputError
from dagster_divorder.store.fragments import DOCUMENTS, Fragments, read_content, records_folder
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.view import View
from tests.conftest import examples

KEY = "key"


def ingest(
    store: LocalStore, lines: list[bytes], block: int = 3, share: float = 1.0, *, unterminated: bool = False
) -> Ingested:
    with Ingest(store, "jsonl", KEY) as reading:
        reading.begin(InputFile(Path("in.jsonl"), "jsonl", DEFAULT_SHAPE))
        for at in range(0, len(lines), block):
            part = lines[at : at + block]
            numbers = list(range(at + 1, at + 1 + len(part)))
            last = at + block >= len(lines)
            block_of_lines = LineBlock("in.jsonl", part, numbers, last and unterminated)
            reading.add(BlockRecords(block_of_lines, DEFAULT_SHAPE))
        return reading.finish(share)


def records(store: LocalStore, view: View) -> list[bytes]:
    content = [value for f in view.records for value in read_content(store, f.file).to_pylist()]
    return [content[row] for row in view.record_row]


def texts(store: LocalStore, view: View) -> list[str]:
    content = [value for f in view.documents for value in read_content(store, f.file).to_pylist()]
    return [content[row] for row in view.document_row]


def line(text: str, extra: int = 0) -> bytes:
    return orjson.dumps({"text": text, "extra": extra})


few_lines = st.lists(
    st.builds(line, st.sampled_from("abcdef"), st.integers(0, 1)) | st.sampled_from([b"{", b'{"text": 1}']),
    min_size=1,
    max_size=40,
)


@settings(deadline=None, max_examples=examples(15))
@given(runs=st.lists(few_lines, min_size=1, max_size=4), block=st.integers(1, 7), rows=st.integers(1, 9))
def test_every_state_of_the_input_is_seen_whole_and_nothing_is_stored_twice(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[bytes]], block: int, rows: int
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("store")).open()
    before, ingest_module.FRAGMENT_ROWS = ingest_module.FRAGMENT_ROWS, rows
    seen_records: set[bytes] = set()
    seen_texts: set[str] = set()
    try:
        for lines in runs:
            sound = [one for one in lines if b'"extra"' in one]
            if not sound:
                with pytest.raises(InputError, match=r"no (usable )?records"):
                    ingest(store, lines, block)
                continue
            result = ingest(store, lines, block)
            held = [orjson.loads(one)["text"] for one in sound]
            assert records(store, result.view) == sound
            assert texts(store, result.view) == held
            assert result.survey.rejected == len(lines) - len(sound)
            rejects = [orjson.loads(entry) for entry in store.read_verified(result.rejects).splitlines()]
            assert [(entry["line"], entry["raw"].encode()) for entry in rejects] == [
                (number, one) for number, one in enumerate(lines, 1) if b'"extra"' not in one
            ]
            assert result.survey.new_records == len(set(sound) - seen_records)
            assert result.survey.new_documents == len(set(held) - seen_texts)
            seen_records |= set(sound)
            seen_texts |= set(held)
            assert result.text_bytes == sum(len(text) for text in set(held))
    finally:
        ingest_module.FRAGMENT_ROWS = before
    for folder, stored in ((records_folder(KEY), seen_records), (DOCUMENTS, seen_texts)):
        assert sum(len(index["id"]) for _, index in Fragments(store, folder).indexes()) == len(stored)


def test_the_version_depends_on_the_records_in_order_not_on_how_they_came(tmp_path: Path) -> None:
    lines = [line(text) for text in "abcab"]
    one = ingest(LocalStore(tmp_path / "1").open(), lines)
    store = LocalStore(tmp_path / "2").open()
    ingest(store, lines[3:], block=1)
    assert ingest(store, lines, block=2).survey.version == one.survey.version
    assert ingest(store, lines[::-1]).survey.version != one.survey.version


def test_a_record_whose_document_is_gone_is_read_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path).open()
    result = ingest(store, [line("a"), line("b")])
    Fragments(store, DOCUMENTS).delete(result.view.documents[0].name)
    again = ingest(store, [line("a"), line("b")])
    assert texts(store, again.view) == ["a", "b"]
    assert again.survey.version == result.survey.version


def test_rows_of_deleted_input_stay_and_are_marked_unused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path).open()
    ingest(store, [line(text) for text in "abc"])
    view = ingest(store, [line("b")]).view
    assert view.document_rows == 3
    assert np.flatnonzero(view.used_documents()).tolist() == view.document_row.tolist()
