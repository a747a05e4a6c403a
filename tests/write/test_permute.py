"""The permutation puts every row where the order says, by every way and through any number of buckets and files."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
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
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import hash_all, words
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.view import Fragment, View, offsets
from dagster_divorder.write import in_place
from dagster_divorder.write import permute as permute_module
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.in_place import can_stage_in_place
from dagster_divorder.write.permute import Permutation, Shard, permute
from dagster_divorder.write.records import LINE_FEED, WriteRecords, stored_records
from tests.conftest import examples

LINES = WriteRecords(from_rows=False, schema=None)


def stored(store: LocalStore, contents: list[list[bytes]], *, rows: bool = False) -> View:
    shelf = Fragments(store, "records/x")
    arrays = [
        pa.StructArray.from_arrays([pa.array(content, pa.binary())], names=["b"])
        if rows
        else pa.array(content, pa.large_binary())
        for content in contents
    ]
    names = [
        (shelf.put(array, {"id": words(hash_all(content))}), len(content))
        for array, content in zip(arrays, contents, strict=True)
    ]
    files = shelf.files()
    fragments = tuple(Fragment(name, files[name], rows) for name, rows in names)
    every = np.arange(sum(map(len, contents)))
    return View("jsonl", fragments, fragments, every, every)


class Two:
    """An engine of this process that says that it has two workers."""

    workers = 2

    def each(self, function: Any, items: Any, **needs: Any) -> Iterator[Any]:
        return LocalEngine(1).each(function, items)


def files_of(
    order: Permutation, write: WriteRecords, limits: list[int], folder: Path, *, workers: bool = False
) -> dict[str, bytes]:
    """What is written of an order, in files that end at the limits, by their names."""
    spans = pairwise([0, *limits])
    shards = {str(end): Shard(first, end, write) for first, end in spans}
    with OutputFolder(LocalStore(folder / "store").open(), folder / "out") as output:
        permute(
            order,
            shards,
            output,
            engine=Two,  # type: ignore[arg-type]
            workers_from=0 if workers else 1 << 40,
            scratch=folder / "out",
            progress=Silent(),
            unit="records",
        )
        written = {name: (folder / "out" / output.staged[name]).read_bytes() for name in shards}
    assert {name: entry["bytes"] for name, entry in output.entries.items()} == {
        name: len(data) for name, data in written.items()
    }
    # Nothing that passed through files is left.
    assert list((folder / "out").iterdir()) == []
    return written


@settings(deadline=None, max_examples=examples(30))
@given(
    data=st.data(),
    bucket=st.integers(1, 60),
    max_buckets=st.integers(1, 6),
    slice_bytes=st.integers(1, 40),
    reach=st.integers(1, 40),
)
def test_lines_come_in_order_by_every_way(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    bucket: int,
    max_buckets: int,
    slice_bytes: int,
    reach: int,
) -> None:
    contents = data.draw(
        st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=9), min_size=1, max_size=5)
    )
    lines = [line for content in contents for line in content]
    # Records repeat, and some are not used.
    rows = np.array(data.draw(st.lists(st.integers(0, len(lines) - 1), min_size=1, max_size=30)))
    limits = sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=3)) | {len(rows)})
    before = data.draw(st.integers(0, 2))
    most = data.draw(st.integers(1, 9))

    def write_some(descriptor: int, buffers: tuple[memoryview, bytes], offset: int) -> int:
        return os.pwrite(descriptor, b"".join(buffers)[:most], offset)

    ways: dict[str, dict[str, Any]] = {
        "in memory": {},
        "through files": {"through_files": True},
        "by workers": {"through_files": True},
        "in place": {"exact": True},
    }
    breaks = data.draw(st.none() | st.sets(st.integers(0, len(rows))).map(sorted))
    for way, how in ways.items():
        order = Permutation(
            contents=[partial(array_of, content, before) for content in contents],
            start=np.cumsum([0, *map(len, contents)]),
            rows=rows,
            sizes=np.array([len(lines[row]) for row in rows]),
            terminator=LINE_FEED,
            breaks=None if breaks is None else np.union1d(breaks, [0, len(rows)]),
            **{"through_files": False, **how},
        )
        with (
            mock.patch.multiple(
                permute_module,
                BUCKET_BYTES=bucket,
                MAX_BUCKETS=max_buckets,
                SLICE_BYTES=slice_bytes,
                VIEWED_BYTES=reach,
            ),
            # The system may take a part of what it is given.
            mock.patch.multiple(in_place, LINE_BYTES=0),
            mock.patch.object(in_place.os, "pwritev", write_some),
        ):
            written = files_of(
                order, LINES, limits, tmp_path_factory.mktemp("permute"), workers=way == "by workers"
            )
        assert written == {
            str(end): b"".join(lines[row] + b"\n" for row in rows[first:end])
            for first, end in pairwise([0, *limits])
        }, way


@pytest.mark.parametrize("breaks", [None, [0, 1, 2, 3]])
def test_a_record_that_is_larger_than_a_bucket_is_one_alone(tmp_path: Path, breaks: list[int] | None) -> None:
    lines = [b"", b"long" * 9, b"short"]
    order = Permutation(
        contents=[partial(array_of, lines, 0)],
        start=np.array([0, 3]),
        rows=np.array([0, 1, 2]),
        sizes=np.array([len(line) for line in lines]),
        terminator=LINE_FEED,
        breaks=None if breaks is None else np.array(breaks),
        through_files=True,
    )
    with mock.patch.multiple(permute_module, BUCKET_BYTES=4, MAX_BUCKETS=16):
        assert (np.diff(order.cuts()) > 0).all()
        written = files_of(order, LINES, [3], tmp_path)
    assert written == {"3": b"".join(line + b"\n" for line in lines)}


def array_of(lines: list[bytes], before: int) -> pa.Array:
    """Lines as a slice of a longer array."""
    return pa.array([b"other"] * before + lines, pa.large_binary())[before:]


def words_of(values: list[str]) -> pa.Array:
    """Rows with a dictionary of their own."""
    return pa.StructArray.from_arrays([pa.array(values).dictionary_encode()], names=["b"])


@settings(deadline=None, max_examples=examples(15))
@given(
    data=st.data(), bucket=st.integers(1, 60), max_buckets=st.integers(1, 6), slice_bytes=st.integers(1, 40)
)
def test_parquet_rows_come_in_order_and_workers_write_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    bucket: int,
    max_buckets: int,
    slice_bytes: int,
) -> None:
    letters = st.text(alphabet="abc", max_size=9)
    contents = data.draw(st.lists(st.lists(letters, min_size=1, max_size=9), min_size=1, max_size=5))
    values = [value for content in contents for value in content]
    rows = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=30)))
    limits = sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=3)) | {len(rows)})
    write = WriteRecords(from_rows=True, schema=pa.schema({"b": pa.dictionary(pa.int32(), pa.string())}))
    ways = []
    for through_files, workers in ((False, False), (True, False), (True, True)):
        order = Permutation(
            contents=[partial(words_of, content) for content in contents],
            start=np.cumsum([0, *map(len, contents)]),
            rows=rows,
            sizes=np.full(len(rows), 10),
            through_files=through_files,
        )
        with mock.patch.multiple(
            permute_module, BUCKET_BYTES=bucket, MAX_BUCKETS=max_buckets, SLICE_BYTES=slice_bytes
        ):
            written = files_of(order, write, limits, tmp_path_factory.mktemp("permute"), workers=workers)
        tables = [pq.read_table(pa.BufferReader(file)) for file in written.values()]
        assert [value for table in tables for value in table["b"].to_pylist()] == [
            values[row] for row in rows
        ]
        ways.append(written)
    # What fits into memory has slices, and so row groups, of other sizes.
    assert ways[1] == ways[2]


def test_an_order_of_nothing_gives_an_empty_file(tmp_path: Path) -> None:
    nothing = np.zeros(0, np.int64)
    order = Permutation(
        contents=[], start=np.zeros(1, np.int64), rows=nothing, sizes=nothing, through_files=False
    )
    assert files_of(order, LINES, [0], tmp_path) == {"0": b""}


def test_parquet_keeps_schema_metadata_and_types(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.large_string()), ("n", pa.int16())], metadata={b"huggingface": b"{}"})
    table = pa.table({"text": ["a", "b", "c"], "n": [1, None, 3]}, schema=schema)
    rows = table.to_struct_array().combine_chunks()
    order = Permutation(
        contents=[lambda: rows],
        start=np.array([0, 3]),
        rows=np.arange(3),
        sizes=np.ones(3),
        through_files=False,
    )
    files = files_of(order, WriteRecords(True, schema), [2, 3], tmp_path)
    written = [pq.read_table(pa.BufferReader(file)) for file in files.values()]
    assert written[0].schema.equals(schema, check_metadata=True)
    assert pa.concat_tables(written).to_pylist() == table.to_pylist()
    (plain,) = files_of(order, WriteRecords(True, None), [3], tmp_path).values()
    assert [orjson.loads(one) for one in plain.splitlines()] == table.to_pylist()


def mapped_bytes(folder: Path) -> int:
    """Of this process's memory, what lies in files of a folder."""
    smaps = Path("/proc/self/smaps").read_text()
    maps = re.findall(rf"{re.escape(str(folder))}/\S+\nSize:.*\n(?:.*\n)*?Rss: +(\d+) kB", smaps)
    return 1024 * sum(map(int, maps))


@pytest.mark.slow
def test_reordered_list_views_of_nulls_are_written_in_parts() -> None:
    # Arrow aborts where it casts a slice of these.
    rows = pa.StructArray.from_arrays([pa.array([[None]] * 20, pa.list_view(pa.null()))], ["views"])
    reordered, file = rows.take(pa.array(range(19, -1, -1))), io.BytesIO()
    WriteRecords(True, pa.schema(list(rows.type)))(iter([reordered[:7], reordered[7:]]), file)
    assert pq.read_table(file)["views"].to_pylist() == [[None]] * 20


def test_what_was_read_of_scattered_files_leaves_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permute_module, "BUCKET_BYTES", 1 << 20)
    content = [[bytes([65 + row % 26]) * 10_000 for row in range(800)] for _ in range(2)]
    store = LocalStore(tmp_path / "kept").open()
    view = stored(store, content)
    order = Permutation(
        contents=stored_records(store, view),
        start=offsets(view.records),
        rows=np.random.default_rng(0).permutation(1600),
        sizes=np.full(1600, 10_000),
        through_files=True,
    )
    resident: list[int] = []

    def write(parts: Iterator[pa.Array], file: object) -> None:
        resident.extend(mapped_bytes(tmp_path / "out") for _ in parts)

    shards = {"all": Shard(0, 1600, write)}
    with OutputFolder(store, tmp_path / "out") as output, contextlib.suppress(KeyError):
        permute(
            order,
            shards,
            output,
            engine=Two,  # type: ignore[arg-type]
            workers_from=1 << 40,
            scratch=tmp_path / "out",
            progress=Silent(),
            unit="records",
        )
    # Those of a bucket are read ahead, and no more of 16 MB.
    assert 0 < max(resident) < 4 << 20


def test_long_lines_that_the_cache_holds_are_written_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "CACHED_BYTES", 10_000)
    long = np.full(5, 2_000)
    assert can_stage_in_place(long)
    assert not can_stage_in_place(long // 2 - 1)
    assert not can_stage_in_place(np.full(6, 2_000))
