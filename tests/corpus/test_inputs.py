"""Reading the corpus: which files, which records, byte for byte. Every codec: whole, of several members, cut at every
place, altered, under the name of another one."""

from __future__ import annotations

import gzip
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.corpus import inputs
from dagster_divorder.corpus.find import find_files
from dagster_divorder.corpus.ingest import ingest
from dagster_divorder.corpus.inputs import CODECS, read_lines, read_rows, read_schema
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import hash_all, to_bytes
from dagster_divorder.store.local import LocalStore
from tests.conftest import examples

BOM = b"\xef\xbb\xbf"


def test_other_kinds_and_mixed_kinds_are_errors(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    (tmp_path / "x.parquet").touch()
    (tmp_path / "x.csv").touch()
    with pytest.raises(InputError, match=r"x\.csv is neither JSONL nor Parquet"):
        find_files([str(tmp_path / "x.csv")])
    with (
        patch.object(inputs, "open_source", side_effect=PermissionError(13, "Permission denied")),
        pytest.raises(InputError, match="Permission denied; make it readable"),
    ):
        list(read_lines(tmp_path / "x.jsonl"))
    with pytest.raises(InputError, match="mixes JSONL"):
        find_files([str(tmp_path / "x.*l"), str(tmp_path / "x.parquet")])


@settings(deadline=None, max_examples=examples(100))
@given(
    lines=st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=30),
    block=st.integers(1, 40),
    newline=st.booleans(),
    mark=st.booleans(),
    begin=st.integers(0, 30),
)
def test_block_size_never_changes_the_records(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    block: int,
    newline: bool,
    mark: bool,
    begin: int,
) -> None:
    file = tmp_path_factory.mktemp("blocks") / "x.jsonl"
    data = BOM * mark + b"\n".join(lines) + (b"\n" if newline else b"")
    file.write_bytes(data)
    whole = data.split(b"\n") if data else []
    if whole and not whole[-1]:
        del whole[-1]
    starts = [sum(len(line) + 1 for line in whole[:at]) for at in range(len(whole))]
    content = [raw.removeprefix(b"" if at else BOM).removesuffix(b"\r") for at, raw in enumerate(whole)]
    expected = [
        (start, line, len(line), hash_all([line]), not line.strip())
        for start, line in zip(starts, content, strict=True)
    ]
    first = begin % (len(whole) + 1)
    offset = [*starts, len(data)][first]
    with patch.object(inputs, "BLOCK_BYTES", block):
        blocks = list(read_lines(file, first=offset))
    found = [
        (start, line, size, to_bytes(id), blank)
        for b in blocks
        for start, line, size, id, blank in zip(
            b.starts.tolist(), b.content, b.sizes.tolist(), b.ids, b.blank, strict=True
        )
    ]
    unfinished = [b.unfinished for b in blocks if b.unfinished]
    if unfinished:
        # A last line that begins an object.
        assert unfinished == [(starts[-1], whole[-1])] and not newline and b"{" in whole[-1]
        del expected[-1]
    assert found == expected[first:]


@pytest.mark.parametrize(
    ("last", "unfinished"),
    [
        (b'{"text": "na\xc3', True),
        (b' {"text": "b"', True),
        (b'{"text": "b"}', False),
        (b'{"text": "b\r', True),
        (b'{"text"\r: "b\r', False),
        (b"no object", False),
        (BOM + b'{"text": "b', False),
        (b"  ", False),
    ],
)
@pytest.mark.parametrize("before", [b"", BOM, b'{"text": "a"}\n'])
def test_a_last_line_is_left_only_if_it_may_become_a_record(
    tmp_path: Path, before: bytes, last: bytes, unfinished: bool
) -> None:
    if not before and last.startswith(BOM):
        unfinished = True
    file = tmp_path / "x.jsonl"
    file.write_bytes(before + last)
    blocks = list(read_lines(file))
    assert [b.unfinished for b in blocks if b.unfinished] == (
        [(len(before.removeprefix(BOM)), before.removeprefix(b'{"text": "a"}\n') + last)]
        if unfinished
        else []
    )
    assert sum(map(len, blocks)) == (not unfinished) + (b"\n" in before)
    file = tmp_path / "x.jsonl.gz"
    file.write_bytes(gzip.compress(before + last))
    assert not any(b.unfinished for b in read_lines(file))


def test_a_line_beyond_the_limit_is_refused_and_never_held(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl.gz"
    with gzip.open(file, "wb", 1) as out:
        out.write(b'{"text": "a"}\n')
        for _ in range(64):
            out.write(b"[" * (1 << 20))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"line 2 has more than 1,048,576 bytes.*; it is a JSON array"):
        list(read_lines(file, 1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * inputs.BLOCK_BYTES
    file.write_bytes(gzip.compress(b'{"text": "a"}\r' * 9))
    with pytest.raises(InputError, match=r"line 1 has more than 99 bytes.*; it is CR line ends, expected LF"):
        list(read_lines(file, 99))


def test_wrong_columns_without_rows_are_an_error_that_names_the_input_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": pa.array([], pa.string())}), tmp_path / "a.parquet")
    one = find_files([str(tmp_path / "a.parquet")], shape=Shape(key=1, label="input 2 (a): "))
    fragments = Fragments(LocalStore(tmp_path / "store").open(), "0" * 32)
    with pytest.raises(InputError) as caught:
        ingest(fragments, "parquet", [(one, read_schema(one.files[0], None))], None, 100, map)
    assert str(caught.value).startswith("input 2 (a): ") and str(caught.value).count("input 2") == 1


def test_parquet_schemas_that_differ_in_nullability_alone_are_told_apart(tmp_path: Path) -> None:
    for name, nullable in (("a", True), ("b", False)):
        schema = pa.schema([pa.field("text", pa.string(), nullable)], metadata={"made": "by a test"})
        pq.write_table(pa.table({"text": ["x"]}, schema=schema), tmp_path / f"{name}.parquet")
    (block,) = read_rows(tmp_path / "a.parquet", None)
    with pytest.raises(InputError, match=r"\{text: string not null\}; expected \{text: string\};"):
        list(read_rows(tmp_path / "b.parquet", block.content.schema))
    assert list(read_rows(tmp_path / "a.parquet", block.content.schema.remove_metadata()))


def test_large_parquet_rows_come_a_few_at_a_time_and_one_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    sizes = [1 << 20] * 20 + [3 << 20] + [1] * 5
    pq.write_table(
        pa.table({"text": ["x" * size for size in sizes]}), tmp_path / "a.parquet", use_dictionary=False
    )
    blocks = list(read_rows(tmp_path / "a.parquet", None))
    assert [row for block in blocks for row in block.starts.tolist()] == list(range(26))
    assert max(block.content.nbytes for block in blocks) <= 2 * inputs.BLOCK_BYTES
    with pytest.raises(InputError, match="row 21 has more than 2,097,152 bytes"):
        list(read_rows(tmp_path / "a.parquet", None, 2 << 20))


@pytest.mark.parametrize("opened", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_is_read_as_parquet_is(tmp_path: Path, opened: Callable[..., pa.RecordBatchWriter]) -> None:
    column, files = pa.array(["a", None, "b"] * 10), [tmp_path / "a.parquet", tmp_path / "a.arrow"]
    columns = {"text": [*map(str, range(30))], "view": column.cast(pa.string_view())}
    table = pa.table({**columns, "dictionary": column.dictionary_encode()})
    pq.write_table(table, files[0])
    with opened(files[1], table.schema) as writer:
        writer.write_table(table, max_chunksize=20)
    with patch.object(inputs, "BLOCK_ROWS", 7):
        parquet, arrow = ([*read_rows(file, None, first=3)] for file in files)
    assert max(map(len, arrow)) <= 7
    parquet, arrow = (inputs.joined(each) for each in (parquet, arrow))
    assert arrow.starts.tolist() == list(range(3, 30)) and to_bytes(arrow.ids) == to_bytes(parquet.ids)
    for damaged in (b"", b"{}" * 99, files[1].read_bytes()[:700]):
        files[1].write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.arrow (cannot be read as Arrow|is damaged after row)"):
            list(read_rows(files[1], None))


LINES = [b'{"text":"%x"}' % random.Random(number).getrandbits(200) for number in range(8)]
DATA = b"".join(line + b"\n" for line in LINES)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}
suffixes = pytest.mark.parametrize("suffix", CODECS)


def read(path: Path, data: bytes) -> list[bytes]:
    path.write_bytes(data)
    return [line for block in read_lines(path) for line in block.content]


@suffixes
def test_one_member_several_and_empty_ones(tmp_path: Path, suffix: str) -> None:
    path, one, none = tmp_path / f"x.jsonl{suffix}", COMPRESS[suffix](DATA), COMPRESS[suffix](b"")
    assert read(path, one) == LINES
    assert read(path, (one + none) * 500) == LINES * 500
    assert read(path, COMPRESS[suffix](DATA[:100]) + COMPRESS[suffix](DATA[100:])) == LINES
    assert read(path, none) == []


@suffixes
def test_a_file_cut_at_any_place_is_an_error(tmp_path: Path, suffix: str) -> None:
    path, one = tmp_path / f"x.jsonl{suffix}", COMPRESS[suffix](DATA)
    two = one + one
    for size in range(len(two)):
        if size == len(one):
            continue
        with pytest.raises(InputError, match=r"x\.jsonl\.\w+ cannot be read after line .* copy or compress"):
            read(path, two[:size])
    others = [COMPRESS[other](DATA) for other in CODECS if other != suffix]
    for data in (
        *(one + other for other in (DATA, b"\xff" * 30, b"x" + one)),
        DATA,
        bytes(512) + one,
        *others,
    ):
        with pytest.raises(InputError, match="compress a damaged or truncated"):
            read(path, data)


LONG_WINDOW = b"\x28\xb5\x2f\xfd\x00\xa8" + (len(DATA) << 3 | 1).to_bytes(3, "little") + DATA
"""A zstd frame of one block that is stored as it is, with a window of 2 GiB, as `zstd --long=31` asks for."""


def test_a_zstd_window_beyond_the_default_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    assert read(path, LONG_WINDOW) == LINES
    assert read(path, LONG_WINDOW + COMPRESS[".zst"](DATA)) == LINES * 2
    with pytest.raises(InputError, match="compress a damaged or truncated"):
        read(path, LONG_WINDOW[:-1])
