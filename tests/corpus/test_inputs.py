"""Reading the corpus: which files, which records, byte for byte."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster_divorder.corpus.corpus import Corpus
from dagster_divorder.corpus.file_states import FileState, PrefixHashes
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.corpus import inputs
from dagster_divorder.corpus.compression import CODECS
from dagster_divorder.corpus.find import find_files
from dagster_divorder.corpus.inputs import LineBlock, LongRecord, RowBlock, read_lines, read_rows
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError
from tests.conftest import examples

BOM = b"\xef\xbb\xbf"


def lines_of(path: Path) -> list[tuple[int, bytes]]:
    blocks = (block for block in read_lines(path) if isinstance(block, LineBlock))
    return [pair for block in blocks for pair in zip(block.numbers, block.lines, strict=True)]


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


@settings(deadline=None, max_examples=examples(60))
@given(
    lines=st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=30),
    block=st.integers(1, 40),
    limit=st.integers(1, 14),
    newline=st.booleans(),
    mark=st.booleans(),
)
def test_block_size_never_changes_the_records(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    block: int,
    limit: int,
    newline: bool,
    mark: bool,
) -> None:
    file = tmp_path_factory.mktemp("blocks") / "x.jsonl"
    data = BOM * mark + b"\n".join(lines) + (b"\n" if newline else b"")
    if any(data.startswith(codec.first_bytes) for codec in CODECS.values()):
        return
    file.write_bytes(data)
    whole = data.split(b"\n")
    marked = [(1, whole[0].removeprefix(BOM)), *enumerate(whole[1:], 2)]
    expected = [
        (number, line.removesuffix(b"\r"))
        for (number, line), raw in zip(marked, whole, strict=True)
        if len(raw) <= limit and line.strip()
    ]
    long = [
        LongRecord(
            str(file), number, len(line), line[: inputs.SHOWN_BYTES], unterminated=number == len(whole)
        )
        for number, line in enumerate(whole, 1)
        if len(line) > limit
    ]
    before = inputs.BLOCK_BYTES
    inputs.BLOCK_BYTES = block
    prefix = PrefixHashes()
    try:
        found = list(read_lines(file, None, prefix, limit))
    finally:
        inputs.BLOCK_BYTES = before
    assert [
        pair for b in found if isinstance(b, LineBlock) for pair in zip(b.numbers, b.lines, strict=True)
    ] == expected
    assert [b for b in found if isinstance(b, LongRecord)] == long
    # In the file's order, and its prefix is all whole lines, long ones among them.
    numbers = [number for b in found for number in (b.numbers if isinstance(b, LineBlock) else [b.number])]
    assert numbers == sorted(numbers)
    assert (prefix.size, prefix.lines) == (len(data) - len(whole[-1]), len(whole) - 1)
    with open(file, "rb") as source:
        state = FileState(str(file), prefix.size, prefix.lines, b"", prefix.chunks)
        assert not prefix.size or PrefixHashes.unchanged(source, state, [0])


def test_short_lines_come_in_blocks_of_bounded_count(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"1\n" * 20_000 + b"2")
    blocks = [block for block in read_lines(file) if isinstance(block, LineBlock)]
    assert [len(block.lines) for block in blocks] == [8192, 8192, 3616, 1]
    assert [block.numbers[0] for block in blocks] == [1, 8193, 16385, 20_001]
    assert [block.unterminated for block in blocks] == [False, False, False, True]


def test_a_long_line_is_read_in_linear_time_and_never_held(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl.gz"
    with gzip.open(file, "wb", 1) as out:
        for _ in range(64):
            out.write(b"x" * (1 << 20))
        out.write(b'\n{"text": "b"}\n')
    tracemalloc.start()
    long, block = read_lines(file, limit=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert long == LongRecord(str(file), 1, 64 << 20, b"x" * inputs.SHOWN_BYTES)
    assert isinstance(block, LineBlock)
    assert (block.lines, block.numbers[0]) == ([b'{"text": "b"}'], 2)
    assert peak < 4 * inputs.BLOCK_BYTES


def test_a_line_below_the_limit_is_joined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of n blocks in O(n) steps: joined with each block, it would take some n / 2 times its size of copying."""
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 64)
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"x" * (2 << 20) + b"\n")
    started = time.process_time()
    (block,) = read_lines(file)
    assert time.process_time() - started < 2.0
    assert isinstance(block, LineBlock)
    assert len(block.lines[0]) == 2 << 20


def test_parquet_rows_come_in_blocks(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [f"t{n}" for n in range(10_000)]}), tmp_path / "a.parquet")
    blocks = [block for block in read_rows(tmp_path / "a.parquet", None) if isinstance(block, RowBlock)]
    assert [(block.first, block.rows.num_rows) for block in blocks] == [(1, 4096), (4097, 4096), (8193, 1808)]


def test_wrong_columns_without_rows_are_an_error_that_names_the_input_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": pa.array([], pa.string())}), tmp_path / "a.parquet")
    one = find_files([str(tmp_path / "a.parquet")], shape=Shape(key=1, label="input 2 (a): "))
    with pytest.raises(InputError) as caught:
        [block for file in Corpus([one], 100) for block in file.blocks()]
    assert str(caught.value).startswith("input 2 (a): ") and str(caught.value).count("input 2") == 1


def test_parquet_schemas_that_differ_in_nullability_alone_are_told_apart(tmp_path: Path) -> None:
    for name, nullable in (("a", True), ("b", False)):
        schema = pa.schema([pa.field("text", pa.string(), nullable)], metadata={"made": "by a test"})
        pq.write_table(pa.table({"text": ["x"]}, schema=schema), tmp_path / f"{name}.parquet")
    (block,) = read_rows(tmp_path / "a.parquet", None)
    assert isinstance(block, RowBlock)
    with pytest.raises(InputError, match=r"\{text: string not null\}; expected \{text: string\};"):
        list(read_rows(tmp_path / "b.parquet", block.rows.schema))
    assert list(read_rows(tmp_path / "a.parquet", block.rows.schema.remove_metadata()))


def test_large_parquet_rows_come_a_few_at_a_time_and_one_beyond_the_limit_alone(tmp_path: Path) -> None:
    sizes = [1 << 20] * 20 + [3 << 20] + [1] * 5
    pq.write_table(
        pa.table({"text": ["x" * size for size in sizes]}), tmp_path / "a.parquet", use_dictionary=False
    )
    blocks = list(read_rows(tmp_path / "a.parquet", None, 2 << 20))
    long = [block for block in blocks if isinstance(block, LongRecord)]
    short = [block for block in blocks if isinstance(block, RowBlock)]
    assert [(block.number, len(block.begins)) for block in long] == [(21, inputs.SHOWN_BYTES)]
    assert sum(block.rows.num_rows for block in short) == 25
    assert max(block.rows.nbytes for block in short) <= 2 * inputs.BLOCK_BYTES
    starts = [block.number if isinstance(block, LongRecord) else block.first for block in blocks]
    assert starts == sorted(starts)
