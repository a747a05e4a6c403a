"""An open export reads the rows of the plan, whatever the format, the layout of the files and the rows asked for."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from unittest import mock

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.exports import parquet
from dagster_divorder.readers.export import Export, open_export
from dagster_divorder.store.manifests import read_whole
from tests.conftest import examples
from tests.exports.made import arguments
from tests.readers.made import NAMES, Stream, exported, write_export, write_manifest


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


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_rows_are_the_plans_in_every_format(name: str, data: st.DataObject) -> None:
    corpus = data.draw(
        arguments().filter(lambda drawn: sum(drawn["lengths"]) > 0 and drawn["records"] is None)
    )
    group, shard_bytes = data.draw(st.sampled_from([1, 100])), data.draw(st.sampled_from([1, 50, 1 << 20]))
    with (
        mock.patch.object(parquet, "GROUP_BYTES", group),
        exported(name, corpus, shard_bytes=shard_bytes) as (path, stream),
    ):
        export = open_export(path)
        export.verify()
        assert len(export) == len(stream)
        check(export, list(range(len(stream))), stream)
        some = st.lists(st.integers(0, len(stream) - 1), min_size=1, max_size=6)
        check(export, data.draw(some), stream)
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


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_is_altered_is_named(name: str, tmp_path: Path) -> None:
    write_export(tmp_path, name, {"lengths": [20, 20], "epochs": 2})
    export = open_export(tmp_path)
    export.verify()
    for file in export.manifest["files"]:
        whole = (tmp_path / file).read_bytes()
        (tmp_path / file).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(StoreError, match=f"{file} has been altered: its sha256 is"):
            export.verify()
        (tmp_path / file).write_bytes(whole[:-1])
        with pytest.raises(
            StoreError, match=f"{file} has {len(whole) - 1} bytes, and {len(whole)} were written"
        ):
            open_export(tmp_path)
        (tmp_path / file).unlink()
        with pytest.raises(StoreError, match=f"{file} is missing"):
            open_export(tmp_path)
        (tmp_path / file).write_bytes(whole)
    open_export(tmp_path).verify()


def test_what_is_no_export_of_this_reader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no export: it has no manifest\.json"):
        open_export(tmp_path)
    write_export(tmp_path, "parquet", {"lengths": [20]})
    manifest = read_whole(tmp_path / "manifest.json")
    assert manifest is not None
    write_manifest(tmp_path, manifest | {"format": "mds"})
    with pytest.raises(InputError, match=r"of the format mds, .* this reader reads parquet, olmo, megatron"):
        open_export(tmp_path)
    write_manifest(tmp_path, manifest | {"format_version": 2})
    with pytest.raises(InputError, match="is of version 2 of the exports; this reader reads 1"):
        open_export(tmp_path)
    write_manifest(tmp_path, manifest | {"rows": 0})
    with pytest.raises(InputError, match="holds no sequence"):
        open_export(tmp_path)
    edited = copy.deepcopy(manifest) | {"plan": "4567", "check": "00"}
    for data in (orjson.dumps(edited), b"{", b"[]", b"null"):
        (tmp_path / "manifest.json").write_bytes(data)
        with pytest.raises(StoreError, match=r"manifest\.json is not what was written"):
            open_export(tmp_path)


def test_what_is_read_is_never_the_file_itself(tmp_path: Path) -> None:
    from dagster_divorder.torch import SequenceDataset

    for name in NAMES:
        write_export(tmp_path / name, name, {"lengths": [16], "length": 4, "end_of_text": False})
        dataset = SequenceDataset(tmp_path / name, native=True)
        before = dataset[0]["input_ids"].clone()
        dataset[0]["input_ids"].fill_(3)
        assert np.array_equal(dataset[0]["input_ids"], before)
        dataset.export.verify()
