"""The gather puts every record where the order says, through any number of buckets and shards."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.engine.local import LocalEngine
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import hash_all, words
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.view import Fragment, View, offsets
from dagster_divorder.write import gather as gather_module
from dagster_divorder.write.curated import OutputFolder, WriteRecords, cut, write_stretch
from dagster_divorder.write.gather import gather, scatter, stored_records
from tests.conftest import examples


def stored(
    store: LocalStore, contents: list[list[bytes]], record_row: list[int], *, rows: bool = False
) -> View:
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
    record_rows = np.array(record_row, dtype=np.int64)
    return View("jsonl", fragments, fragments, record_rows, record_rows)


def mapped_bytes(folder: Path) -> int:
    """Of this process's memory, what lies in files of a folder."""
    smaps = Path("/proc/self/smaps").read_text()
    maps = re.findall(rf"{re.escape(str(folder))}/\S+\nSize:.*\n(?:.*\n)*?Rss: +(\d+) kB", smaps)
    return 1024 * sum(map(int, maps))


@pytest.mark.slow
def test_what_was_read_of_scattered_files_leaves_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather_module, "BUCKET_BYTES", 1 << 20)
    content = [[bytes([65 + row % 26]) * 10_000 for row in range(800)] for _ in range(2)]
    store = LocalStore(tmp_path / "store").open()
    view = stored(store, content, list(range(1600)))
    rows = np.random.default_rng(0).permutation(1600)
    (tmp_path / "out").mkdir()
    scattered = scatter(
        LocalEngine(1),
        stored_records(store, view),
        offsets(view.records),
        rows,
        np.full(1600, 10_000),
        tmp_path / "out",
        lambda count: None,
        {},
    )
    resident = [mapped_bytes(tmp_path / "out") for _ in scattered.parts(0, 1600)]
    # Those of a bucket are read ahead, and no more of 16 MB.
    assert 0 < max(resident) < 4 << 20


@settings(deadline=None, max_examples=examples(15))
@given(data=st.data(), bucket=st.integers(1, 60), max_buckets=st.integers(1, 6))
def test_output_is_the_records_in_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, bucket: int, max_buckets: int
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    contents = [[b"%d-%d" % (at, row) * (row + 1) for row in range(size)] for at, size in enumerate(sizes)]
    flat = [value for content in contents for value in content]
    # Records repeat and some stored rows are not used.
    record_row = data.draw(st.lists(st.integers(0, len(flat) - 1), min_size=1, max_size=20))
    order = np.array(data.draw(st.permutations(range(len(record_row)))), dtype=np.int64)
    folder = tmp_path_factory.mktemp("gather")
    store = LocalStore(folder).open()
    view = stored(store, contents, record_row)
    before = gather_module.BUCKET_BYTES, gather_module.MAX_BUCKETS
    gather_module.BUCKET_BYTES, gather_module.MAX_BUCKETS = bucket, max_buckets
    told: list[int] = []
    try:
        lengths = np.array([len(value) for value in flat], dtype=np.int64)
        parts = list(gather(store, view, rows := view.record_row[order], lengths[rows], folder, told.append))
    finally:
        gather_module.BUCKET_BYTES, gather_module.MAX_BUCKETS = before
    assert [value for part in parts for value in part.to_pylist()] == [flat[record_row[at]] for at in order]
    assert len(parts) <= max_buckets
    assert sum(told) == len(record_row)
    assert [path for path in folder.iterdir() if path.name.startswith(".tmp")] == []


def arrays(*parts: list[bytes]) -> Iterator[pa.Array]:
    return iter([pa.array(part, pa.large_binary()) for part in parts])


def write_each(write: WriteRecords, parts: Iterator[pa.Array], limits: list[int], folder: Path) -> list[Path]:
    files = []
    for limit, records in zip(limits, cut(parts, limits), strict=True):
        files.append(folder / str(limit))
        with open(files[-1], "wb") as file:
            write(records, file)
    return files


def test_shards_are_cut_at_their_limits_whatever_the_parts(tmp_path: Path) -> None:
    files = write_each(
        WriteRecords(False, None), arrays([b"a", b"b", b"c"], [b"d", b"e"]), [2, 4, 5], tmp_path
    )
    assert [file.read_bytes() for file in files] == [b"a\nb\n", b"c\nd\n", b"e\n"]


def test_parquet_keeps_schema_metadata_and_types(tmp_path: Path) -> None:
    schema = pa.schema([("text", pa.large_string()), ("n", pa.int16())], metadata={b"huggingface": b"{}"})
    table = pa.table({"text": ["a", "b", "c"], "n": [1, None, 3]}, schema=schema)
    rows = table.to_struct_array().combine_chunks()
    files = write_each(WriteRecords(True, schema), iter([rows.slice(0, 1), rows.slice(1)]), [2, 3], tmp_path)
    written = [pq.read_table(file) for file in files]
    assert written[0].schema.equals(schema, check_metadata=True)
    assert pa.concat_tables(written).to_pylist() == table.to_pylist()
    (plain,) = write_each(WriteRecords(True, None), iter([rows]), [3], tmp_path)
    assert [orjson.loads(one) for one in plain.read_bytes().splitlines()] == table.to_pylist()


@settings(deadline=None, max_examples=examples(15))
@given(
    data=st.data(),
    bucket=st.integers(1, 60),
    max_buckets=st.integers(1, 6),
    slice_bytes=st.integers(1, 40),
    parquet=st.booleans(),
)
def test_files_written_in_workers_have_the_bytes_of_one_pass(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    bucket: int,
    max_buckets: int,
    slice_bytes: int,
    parquet: bool,
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    contents = [[b"%d-%d" % (at, row) * (row + 1) for row in range(size)] for at, size in enumerate(sizes)]
    flat = [value for content in contents for value in content]
    record_row = data.draw(st.lists(st.integers(0, len(flat) - 1), min_size=1, max_size=30))
    order = np.array(data.draw(st.permutations(range(len(record_row)))), dtype=np.int64)
    cuts = data.draw(st.sets(st.integers(1, len(order)), max_size=3))
    limits = sorted(cuts | {len(order)})
    folder = tmp_path_factory.mktemp("scatter")
    store = LocalStore(folder / "store").open()
    view = stored(store, contents, record_row, rows=parquet)
    before = gather_module.BUCKET_BYTES, gather_module.MAX_BUCKETS, gather_module.SLICE_BYTES
    gather_module.BUCKET_BYTES, gather_module.MAX_BUCKETS, gather_module.SLICE_BYTES = (
        bucket,
        max_buckets,
        slice_bytes,
    )
    lengths = np.array([len(value) for value in flat], dtype=np.int64)
    write = WriteRecords(from_rows=parquet, schema=pa.schema({"b": pa.binary()}) if parquet else None)
    told: list[int] = []
    try:
        (folder / "single").mkdir()
        rows = view.record_row[order]
        with contextlib.closing(
            gather(store, view, rows, lengths[rows], folder, lambda count: None)
        ) as parts:
            single = write_each(write, parts, limits, folder / "single")
        with OutputFolder(store, folder / "out") as output:
            scattered = scatter(
                LocalEngine(1),
                stored_records(store, view),
                offsets(view.records),
                view.record_row[order],
                lengths[view.record_row[order]],
                folder / "out",
                told.append,
                {},
            )
            stretches = {
                str(end): stretch for end, stretch in zip(limits, pairwise([0, *limits]), strict=True)
            }
            output.stage_each(LocalEngine(1), partial(write_stretch, scattered, write), stretches)
            written = [(folder / "out" / output.staged[name]).read_bytes() for name in stretches]
            output.folder.delete(scattered.files)
    finally:
        gather_module.BUCKET_BYTES, gather_module.MAX_BUCKETS, gather_module.SLICE_BYTES = before
    if sum(lengths[record_row]) > 2 * bucket:
        # What fits into memory, two buckets, is never scattered; its slices are of other sizes.
        assert written == [file.read_bytes() for file in single]
    assert sum(told) == len(order)
    assert [entry["bytes"] for entry in output.entries.values()] == list(map(len, written))
    assert list((folder / "out").iterdir()) == []
