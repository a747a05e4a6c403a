"""Reading the corpus: which files, which records, byte for byte."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError
from dagster_divorder.store import inputs
from dagster_divorder.store.find import find_files
from dagster_divorder.store.inputs import read_lines, read_rows


def lines_of(path: Path) -> list[tuple[int, bytes]]:
    return [pair for block in read_lines(path) for pair in zip(block.numbers, block.lines, strict=True)]


def test_files_folders_and_globs_in_order_each_file_once(tmp_path: Path) -> None:
    for name in (
        "b/2.jsonl",
        "b/1.jsonl.gz",
        "b/.hidden.jsonl",
        "b/_SUCCESS.json",
        "b/notes.txt",
        "a.ndjson",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_files([str(tmp_path / "a.ndjson"), str(tmp_path / "b"), str(tmp_path / "**/*.jsonl")])
    assert found.kind == "jsonl"
    assert [str(file.relative_to(tmp_path)) for file in found.files] == [
        "a.ndjson",
        "b/1.jsonl.gz",
        "b/2.jsonl",
    ]


def test_no_match_other_kinds_and_mixed_kinds_are_errors(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    (tmp_path / "x.parquet").touch()
    (tmp_path / "x.csv").touch()
    with pytest.raises(InputError, match=r"no file matches '.*nothing\*'"):
        find_files([str(tmp_path / "nothing*")])
    with pytest.raises(InputError, match=r"x\.csv is neither JSONL nor Parquet"):
        find_files([str(tmp_path / "x.csv")])
    with pytest.raises(InputError, match="mixes JSONL"):
        find_files([str(tmp_path / "x.*l"), str(tmp_path / "x.parquet")])


def test_terminators_bom_blank_lines_and_missing_last_newline(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a":1}\r\n\n  \n{"b":"\xc3\xa9"}\n{"c":3}')
    assert lines_of(file) == [(1, b'{"a":1}'), (4, b'{"b":"\xc3\xa9"}'), (5, b'{"c":3}')]
    assert [block.unterminated for block in read_lines(file)][-1]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_read_alike_and_a_cut_one_is_an_error(tmp_path: Path, suffix: str) -> None:
    data = b"".join(b'{"text":"%d"}\n' % number for number in range(20_000))
    codec = {".gz": "gzip", ".zst": "zstd"}[suffix]
    with pa.CompressedOutputStream(str(tmp_path / f"x.jsonl{suffix}"), codec) as stream:
        stream.write(data)
    whole = (tmp_path / f"x.jsonl{suffix}").read_bytes()
    (tmp_path / f"two.jsonl{suffix}").write_bytes(whole + whole)
    (tmp_path / f"cut.jsonl{suffix}").write_bytes(whole[:-9])
    assert [line for _, line in lines_of(tmp_path / f"x.jsonl{suffix}")] == data.splitlines()
    assert len(lines_of(tmp_path / f"two.jsonl{suffix}")) == 40_000
    with pytest.raises(InputError, match=r"cut\.jsonl.*copied or compressed again"):
        lines_of(tmp_path / f"cut.jsonl{suffix}")


def test_gzip_of_nothing_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b""))
    assert lines_of(tmp_path / "x.jsonl.gz") == []


@settings(deadline=None, max_examples=60)
@given(
    lines=st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=30),
    block=st.integers(1, 9),
    newline=st.booleans(),
)
def test_block_size_never_changes_the_records(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], block: int, newline: bool
) -> None:
    file = tmp_path_factory.mktemp("blocks") / "x.jsonl"
    data = b"\n".join(lines) + (b"\n" if newline else b"")
    file.write_bytes(data)
    expected = [
        (number, line.removesuffix(b"\r"))
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
        if line.strip()
    ]
    before = inputs.BLOCK_BYTES
    inputs.BLOCK_BYTES = max(block, 3)  # a BOM is read whole
    try:
        assert lines_of(file) == expected
    finally:
        inputs.BLOCK_BYTES = before


def test_parquet_rows_in_blocks_and_other_schemas_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [f"t{n}" for n in range(10_000)]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["x"], "more": [1]}), tmp_path / "b.parquet")
    blocks = list(read_rows(tmp_path / "a.parquet", None))
    assert [(block.first, block.rows.num_rows) for block in blocks] == [(1, 4096), (4097, 4096), (8193, 1808)]
    with pytest.raises(
        InputError, match=r"b\.parquet has other columns.*more: int64.*expected \{text: string\}"
    ):
        list(read_rows(tmp_path / "b.parquet", blocks[0].rows.schema))
    (tmp_path / "c.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"c\.parquet cannot be read as Parquet"):
        list(read_rows(tmp_path / "c.parquet", None))
