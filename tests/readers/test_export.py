"""An open export reads the rows of the plan, whatever the format, the layout of the files and the rows asked for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.readers import files
from dagster_divorder.readers.export import Export, open_export
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at
from dagster_divorder.write.exports import parquet
from tests.conftest import examples
from tests.readers.made import Stream, exported, write_export, write_manifest
from tests.write.exports.made import arguments


def check(export: Export, rows: list[int], stream: Stream) -> None:
    """Rows of an export against the stream, one by one."""
    block = export.block(rows)
    padding = export.manifest["tokenizer"]["padding"]
    flat = [[token for document in stream[row] for token in document] for row in rows]
    assert block.ids.tolist() == [ids + [padding] * (export.length - len(ids)) for ids in flat]
    lengths, counts = block.documents
    assert lengths.tolist() == [len(document) for row in rows for document in stream[row]]
    assert counts.tolist() == [len(stream[row]) for row in rows]
    if export.padded:
        assert block.filled is not None
        assert block.filled.sum(1).tolist() == [len(ids) for ids in flat]
    else:
        assert block.filled is None


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_rows_are_the_plans(data: st.DataObject) -> None:
    corpus = data.draw(
        arguments().filter(lambda drawn: sum(drawn["lengths"]) > 0 and drawn["records"] is None)
    )
    group, shard_bytes = data.draw(st.sampled_from([1, 100])), data.draw(st.sampled_from([1, 50, 1 << 20]))
    with (
        mock.patch.object(parquet, "GROUP_BYTES", group),
        exported("parquet", corpus, shard_bytes=shard_bytes) as (path, stream),
    ):
        export = open_export(path)
        assert len(export) == len(stream)
        check(export, list(range(len(stream))), stream)
        row_lists = st.lists(st.integers(0, len(stream) - 1), min_size=1, max_size=6)
        check(export, data.draw(row_lists), stream)
        first, end = sorted(
            data.draw(st.lists(st.integers(0, len(stream)), min_size=2, max_size=2, unique=True))
        )
        assert (export.block(range(first, end)).ids == export.block(list(range(first, end))).ids).all()
        check(pickle.loads(pickle.dumps(export)), [0], stream)


@settings(max_examples=examples(25), deadline=None)
@given(
    world_size=st.integers(1, 3),
    micro_batch=st.integers(1, 3),
    workers=st.integers(1, 3),
    rows=st.integers(30, 60),
)
def test_a_transposed_layout_is_read_in_the_order_of_the_plan(
    world_size: int, micro_batch: int, workers: int, rows: int
) -> None:
    layout = {"world_size": world_size, "micro_batch": micro_batch, "workers": workers}
    corpus = {"lengths": [1] * rows, "length": 2, "epochs": 2}
    with exported("parquet", corpus, layout=layout) as (path, stream):
        export = open_export(path)
        assert len(export) == len(stream)
        check(export, list(range(len(stream))), stream)


def test_rows_that_are_not_there_end_an_iteration(tmp_path: Path) -> None:
    stream = write_export(tmp_path, "parquet", {"lengths": [7, 7], "end_of_text": False, "length": 7})
    export = open_export(tmp_path)
    assert len(stream) == 2
    for rows in ([2], [-1], range(1, 3), []):
        with pytest.raises(IndexError, match="has rows 0 to 1"):
            export.block(rows)


def test_every_file_of_another_size_is_named(tmp_path: Path) -> None:
    write_export(tmp_path, "parquet", {"lengths": [20, 20], "epochs": 2})
    for file in open_export(tmp_path).manifest["files"]:
        place = file_at(tmp_path, file)
        whole = place.read_bytes()
        place.write_bytes(whole[:-1])
        with pytest.raises(
            StoreError, match=f"{place} has {len(whole) - 1} bytes, and {len(whole)} were written"
        ):
            open_export(tmp_path)
        place.unlink()
        with pytest.raises(StoreError, match=f"{place} is missing"):
            open_export(tmp_path)
        place.write_bytes(whole)
    open_export(tmp_path)


def test_what_is_no_export_of_this_reader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"is not an export: there is no .*manifest\.json.*copy its neighbour too"
    ):
        open_export(tmp_path)
    write_export(tmp_path, "parquet", {"lengths": [20]})
    manifest = dict(open_export(tmp_path).manifest)
    write_manifest(tmp_path, manifest | {"format": "mds"})
    with pytest.raises(InputError, match=r"in the format mds, .* this reader reads parquet: add it"):
        open_export(tmp_path)
    write_manifest(tmp_path, manifest | {"format_version": 5})
    with pytest.raises(InputError, match="has version 5 of the exports; this reader reads 3 and 4"):
        open_export(tmp_path)
    write_manifest(tmp_path, manifest | {"rows": 0})
    with pytest.raises(InputError, match="holds no sequence"):
        open_export(tmp_path)
    write_manifest(tmp_path, manifest | {"replaced_by": "ab"})
    with pytest.raises(StoreError, match="is being rewritten, or a run was interrupted while writing it"):
        open_export(tmp_path)
    edited = manifest | {"plan": "4567", "check": "00"}
    for data in (orjson.dumps(edited), b"{", b"[]", b"null"):
        file_at(tmp_path, EXPORT_MANIFEST).write_bytes(data)
        with pytest.raises(StoreError, match=r"manifest\.json has been altered"):
            open_export(tmp_path)


def test_what_is_read_is_never_the_file_itself(tmp_path: Path) -> None:
    from dagster_divorder.torch import SequenceDataset

    write_export(tmp_path, "parquet", {"lengths": [16], "length": 4, "end_of_text": False})
    dataset = SequenceDataset(tmp_path)
    before = dataset[0]["input_ids"].clone()
    dataset[0]["input_ids"].fill_(3)
    assert np.array_equal(dataset[0]["input_ids"], before)


def rewritten(path: Path, plan: str, **corpus: Any) -> None:
    """Export another plan into the folder, as a run does: files under new names, the manifest, no old file any more."""
    before = open_export(path).manifest["files"].keys()
    write_export(path, "parquet", {"lengths": [20] * 9, **corpus}, tag=plan * 2, plan=plan, shard_bytes=40)
    for file in before - open_export(path).manifest["files"].keys():
        file_at(path, file).unlink()


def test_an_open_export_is_read_to_its_end_whatever_is_exported_over_it(tmp_path: Path) -> None:
    stream = write_export(tmp_path, "parquet", {"lengths": [20] * 9}, shard_bytes=40)
    opened, pickled = open_export(tmp_path), pickle.dumps(open_export(tmp_path))
    check(opened, [0, 1], stream)
    rewritten(tmp_path, "4567", seed=1)
    check(opened, list(range(len(stream))), stream)
    assert (opened.plan, open_export(tmp_path).plan) == ("0123", "4567")
    with pytest.raises(StoreError, match="holds the plan 4567; expected 0123"):
        pickle.loads(pickled)


def test_a_file_that_was_not_open_yet_when_it_was_replaced_ends_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an export of more files than stay open."""
    monkeypatch.setattr(files, "PINNED", 2)
    stream = write_export(tmp_path, "parquet", {"lengths": [20] * 9}, shard_bytes=40)
    opened = open_export(tmp_path)
    rewritten(tmp_path, "4567", seed=1)
    check(opened, [0], stream)
    with pytest.raises(StoreError, match=r"it was opened with the plan 0123, and now holds 4567"):
        opened.block([len(stream) - 1]).ids  # noqa: B018


def test_files_of_equal_size_are_told_apart(tmp_path: Path) -> None:
    write_export(tmp_path, "parquet", {"lengths": [8] * 20, "end_of_text": False}, shard_bytes=64)
    sizes: dict[int, list[str]] = {}
    for file, entry in open_export(tmp_path).manifest["files"].items():
        if file.endswith(".parquet"):
            sizes.setdefault(entry["bytes"], []).append(file)
    file, other, *_ = next(group for group in sizes.values() if len(group) > 1)
    file_at(tmp_path, file).rename(tmp_path / "aside")
    file_at(tmp_path, other).rename(file_at(tmp_path, file))
    (tmp_path / "aside").rename(file_at(tmp_path, other))
    with pytest.raises(StoreError, match="is not the file that the manifest names"):
        open_export(tmp_path)
