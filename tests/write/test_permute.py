"""The permutation puts every run where the order says, by every way and through any number of buckets and files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.engine.local import LocalEngine
from dagster_divorder.engine.progress import Silent
from dagster_divorder.store.ids import hash_all, words
from dagster_divorder.store.local import LocalStore
from dagster_divorder.write import permute as permute_module
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.permute import Permutation, Shard, permute
from dagster_divorder.write.records import LINE, WriteRecords, common_lines
from tests.conftest import examples

LINES = WriteRecords(from_rows=False, schema=None)
WAYS = {"in memory": (False, False), "through files": (True, False), "by workers": (True, True)}
"""Whether runs pass through files, and whether workers write."""


class Two:
    """An engine of this process that says that it has two workers."""

    workers = 2

    def each(self, function: Any, items: Any, **needs: Any) -> Iterator[Any]:
        return LocalEngine(1).each(function, items)


def files_of(
    order: Permutation, write: WriteRecords, limits: list[int], folder: Path, way: str = "in memory"
) -> dict[str, bytes]:
    """What is written of an order, in files that end at the limits, by their names."""
    shards = {str(end): Shard(first, end, write) for first, end in pairwise([0, *limits])}
    through_files, workers = WAYS[way]
    with OutputFolder(LocalStore(folder / "store").open(), folder / "out") as output:
        permute(
            order,
            shards,
            output,
            through_files=through_files,
            engine=Two,  # type: ignore[arg-type]
            workers_from=0 if workers else 1 << 40,
            progress=Silent(),
            unit="records",
        )
        written = {name: (folder / "out" / output.staged[name]).read_bytes() for name in shards}
    assert [entry["bytes"] for entry in output.entries.values()] == [*map(len, written.values())]
    # Nothing that passed through files is left.
    assert list((folder / "out").iterdir()) == []
    return written


def flat(values: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(values), LINE)


def order_of(contents: list[list[bytes]], rows: np.ndarray, breaks: np.ndarray | None = None) -> Permutation:
    """The lines of `rows`, numbered over all contents."""
    sizes = np.array([len(line) for content in contents for line in content], np.uint32)
    begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return Permutation(
        contents=[partial(flat, content) for content in contents],
        start=begins[np.cumsum([0, *map(len, contents)])],
        dtype=LINE,
        first=begins[rows],
        sizes=sizes[rows],
        lengths=sizes[rows] + np.uint32(1),
        filler=ord("\n"),
        breaks=breaks,
    )


@settings(deadline=None, max_examples=examples(30))
@given(data=st.data(), bucket=st.integers(1, 60), piece=st.integers(0, 20), slice_bytes=st.integers(1, 40))
def test_lines_come_in_order_by_every_way(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, bucket: int, piece: int, slice_bytes: int
) -> None:
    contents = data.draw(st.lists(st.lists(st.binary(max_size=20), max_size=9), min_size=1, max_size=5))
    contents[0] = contents[0] or [b""]
    lines = [line for content in contents for line in content]
    # Records repeat, and some are not used.
    rows = np.array(data.draw(st.lists(st.integers(0, len(lines) - 1), min_size=1, max_size=30)))
    limits = sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=3)) | {len(rows)})
    breaks = data.draw(st.none() | st.sets(st.integers(0, len(rows))))
    for way in WAYS:
        order = order_of(
            contents, rows, None if breaks is None else np.union1d([*breaks], [0, *limits]).astype(int)
        )
        constants = {"BUCKET_BYTES": bucket, "PIECE_BYTES": piece, "SLICE_BYTES": slice_bytes}
        with mock.patch.multiple(permute_module, **constants):
            written = files_of(order, LINES, limits, tmp_path_factory.mktemp("permute"), way)
        assert written == {
            str(end): b"".join(lines[row] + b"\n" for row in rows[first:end])
            for first, end in pairwise([0, *limits])
        }, way


def words_of(values: list[str]) -> pa.Array:
    """Rows with a dictionary of their own."""
    return pa.StructArray.from_arrays([pa.array(values).dictionary_encode()], names=["b"])


@settings(deadline=None, max_examples=examples(15))
@given(data=st.data(), bucket=st.integers(1, 60), slice_bytes=st.integers(1, 40))
def test_parquet_rows_come_in_order_and_workers_write_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, bucket: int, slice_bytes: int
) -> None:
    letters = st.text(alphabet="abc", max_size=9)
    contents = data.draw(st.lists(st.lists(letters, min_size=1, max_size=9), min_size=1, max_size=5))
    values = [value for content in contents for value in content]
    rows = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=30)))
    limits = sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=3)) | {len(rows)})
    write = WriteRecords(from_rows=True, schema=pa.schema({"b": pa.dictionary(pa.int32(), pa.string())}))
    order = Permutation(
        contents=[partial(words_of, content) for content in contents],
        start=np.cumsum([0, *map(len, contents)]),
        dtype=None,
        first=rows,
        sizes=np.full(len(rows), 10),
    )
    ways = []
    for way in WAYS:
        with mock.patch.multiple(permute_module, BUCKET_BYTES=bucket, PIECE_BYTES=0, SLICE_BYTES=slice_bytes):
            written = files_of(order, write, limits, tmp_path_factory.mktemp("permute"), way)
        tables = [pq.read_table(pa.BufferReader(file)) for file in written.values()]
        found = [value for table in tables for value in table["b"].to_pylist()]
        assert found == [values[row] for row in rows]
        ways.append(written)
    # What fits into memory has slices, and so row groups, of other sizes.
    assert ways[1] == ways[2]


@pytest.mark.parametrize("way", WAYS)
def test_an_order_of_nothing_gives_an_empty_file(way: str, tmp_path: Path) -> None:
    assert files_of(order_of([[]], np.zeros(0, int)), LINES, [0], tmp_path, way) == {"0": b""}


def test_parquet_keeps_schema_metadata_and_types(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.large_string()), ("n", pa.int16())], metadata={b"huggingface": b"{}"})
    table = pa.table({"text": ["a", "b", "c"], "n": [1, None, 3]}, schema=schema)
    rows = table.to_struct_array().combine_chunks()
    order = Permutation(
        contents=[lambda: rows], start=np.array([0, 3]), dtype=None, first=np.arange(3), sizes=np.ones(3, int)
    )
    files = files_of(order, WriteRecords(True, schema), [2, 3], tmp_path)
    written = [pq.read_table(pa.BufferReader(file)) for file in files.values()]
    assert written[0].schema.equals(schema, check_metadata=True)
    assert pa.concat_tables(written).to_pylist() == table.to_pylist()
    (plain,) = files_of(order, WriteRecords(True, None), [3], tmp_path).values()
    assert [orjson.loads(one) for one in plain.splitlines()] == table.to_pylist()


@pytest.mark.slow
def test_reordered_list_views_of_nulls_are_written_in_parts() -> None:
    # Arrow aborts where it casts a slice of these.
    rows = pa.StructArray.from_arrays([pa.array([[None]] * 20, pa.list_view(pa.null()))], ["views"])
    reordered, file = rows.take(pa.array(range(19, -1, -1))), io.BytesIO()
    WriteRecords(True, pa.schema(list(rows.type)))(iter([reordered[:7], reordered[7:]]), file)
    assert pq.read_table(file)["views"].to_pylist() == [[None]] * 20


@pytest.mark.parametrize(
    ("held", "count"),
    [
        (b"a\nbb\n\nc\n", 4),
        (b"a\nbb\n\nc\nmore\n", 4),
        (b"a\nbb\n", 2),
        (b"a\nbx\n\nc\n", 1),
        (b"a\nbb", 1),
        (b"", 0),
    ],
)
def test_a_file_goes_on_behind_its_lines_that_stay(tmp_path: Path, held: bytes, count: int) -> None:
    path, lines, file = tmp_path / "lines", [b"a", b"bb", b"", b"c"], io.BytesIO()
    path.write_bytes(held)
    same, size = common_lines(path, words(hash_all(lines)))
    assert same == count
    rest = np.frombuffer(b"".join(line + b"\n" for line in lines[same:]), LINE)
    replace(LINES, begins=(path, size))(iter([rest]), file)
    assert file.getvalue() == b"a\nbb\n\nc\n"
