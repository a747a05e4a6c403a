"""MDS and litdata: what is read at the offsets of a file's table is what was written. `tests/trainers/test_isolated.py`
compares the files with their real writers'."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.exports import FORMATS
from tests.conftest import examples
from tests.exports.made_rows import made_rows, write

Columns = dict[str, np.ndarray]


def read_table(data: bytes) -> list[bytes]:
    """What a file holds, cut at the offsets of its table; first what stands between table and samples."""
    count = int.from_bytes(data[:4], "little")
    offsets = np.frombuffer(data, "<u4", count + 1, 4).tolist()
    assert offsets[-1] == len(data)
    return [data[begin:end] for begin, end in pairwise([4 * (count + 2), *offsets])]


def read_mds(path: Path) -> list[Columns]:
    found = []
    for shard in json.loads((path / "index.json").read_bytes())["shards"]:
        data = (path / shard["raw_data"]["basename"]).read_bytes()
        head, *samples = read_table(data)
        assert json.loads(head).items() <= shard.items()
        assert (len(data), len(samples)) == (shard["raw_data"]["bytes"], shard["samples"])
        encodings = [encoding.split(":")[1:] for encoding in shard["column_encodings"]]
        fields = np.dtype(
            [
                (name, dtype, (int(length),))
                for name, (dtype, length) in zip(shard["column_names"], encodings, strict=True)
            ]
        )
        assert shard["column_sizes"] == [fields[name].itemsize for name in shard["column_names"]]
        rows = np.frombuffer(b"".join(samples), fields)
        assert len(rows) == len(samples)
        found.append({name: rows[name] for name in shard["column_names"]})
    return found


def read_litdata(path: Path) -> list[Columns]:
    found = []
    index = json.loads((path / "index.json").read_bytes())
    types = {
        "no_header_tensor:11": np.uint8,
        "no_header_tensor:16": np.int32,
        "no_header_tensor:20": np.uint16,
    }
    names = json.loads(json.loads(index["config"]["data_spec"])[1]["context"])
    for chunk in index["chunks"]:
        data = (path / chunk["filename"]).read_bytes()
        head, *samples = read_table(data)
        assert head == b""
        assert (len(data), len(samples)) == (chunk["chunk_bytes"], chunk["chunk_size"])
        columns: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for sample in samples:
            at = 4 * len(names)
            sizes = np.frombuffer(sample[:at], "<u4").tolist()
            for name, size, code in zip(names, sizes, index["config"]["data_format"], strict=True):
                columns[name].append(np.frombuffer(sample[at : at + size], types[code]))
                at += size
            assert at == len(sample)
        found.append({name: np.stack(values) for name, values in columns.items()})
    return found


READERS = {"mds": (read_mds, "tokens"), "litdata": (read_litdata, "input_ids")}


@pytest.mark.parametrize("name", READERS)
@hypothesis.settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_what_is_read_is_what_was_written(name: str, data: st.DataObject) -> None:
    count, length = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9))
    wide, padded = data.draw(st.booleans()), data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    vocabulary = 1 << 20 if wide else 1 << 16
    tokens = random.integers(1, length + 1, count) if padded else np.full(count, length)
    held = np.arange(length) < tokens[:, None]
    ids = np.where(held, random.integers(1, vocabulary, (count, length)), 0)
    rows = made_rows(ids.astype(np.uint32 if wide else np.uint16), tokens, vocabulary=vocabulary)
    shard_bytes = data.draw(st.sampled_from([1, 100, 700, 1 << 20]))
    read, column = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        manifest = write(FORMATS[name], Path(folder) / name, rows, shard_bytes)
        files = read(Path(folder) / name)
    assert [len(file[column]) for file in files] == manifest["rows_of_files"]
    assert {file[column].dtype.name for file in files} == {manifest["dtype"]}
    assert (manifest["dtype"] == "uint16") is not wide
    assert (np.concatenate([file[column] for file in files]) == ids).all()
    if (tokens < length).any():
        assert (np.concatenate([file["attention_mask"] for file in files]) == held).all()
    else:
        assert {name for file in files for name in file} == {column}


@pytest.mark.parametrize("name", READERS)
def test_files_are_as_large_as_asked(name: str, tmp_path: Path) -> None:
    rows = made_rows(np.zeros((300, 8), np.uint16))
    manifest = write(FORMATS[name], tmp_path / name, rows, 2000)
    *full, _ = [entry["bytes"] for file, entry in manifest["files"].items() if file != "index.json"]
    assert len(full) > 1
    assert all(2000 - 24 < size <= 2000 for size in full)


def test_litdata_is_fetched_anew_when_its_rows_change(tmp_path: Path) -> None:
    def updated_at(name: str, first: int) -> str:
        ids = np.arange(first, first + 16, dtype=np.uint16).reshape(2, 8)
        write(FORMATS["litdata"], tmp_path / name, made_rows(ids))
        found: str = json.loads((tmp_path / name / "index.json").read_bytes())["updated_at"]
        return found

    assert updated_at("a", 0) == updated_at("b", 0) != updated_at("c", 1)
