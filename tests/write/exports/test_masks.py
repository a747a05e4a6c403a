"""The loss mask of every format that has one, token for token against the mask found slowly."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.write.exports import FORMATS
from dagster_divorder.write.exports.format import Options
from dagster_divorder.write.exports.parquet import COLUMNS
from dagster_divorder.write.exports.rows import Rows
from tests.conftest import examples
from tests.write.exports.made import TAG, Folder, arguments, drawn_memory, masks_of, rows_of, runs_of

Masks = list[list[bool]]


def parquet(folder: Path, rows: Rows) -> Masks:
    table = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    for row in table:
        ids, labels = row["input_ids"], row["labels"]
        assert row["assistant_masks"] == row["completion_mask"] == [int(label != -100) for label in labels]
        assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
        assert row["position_ids"] == [place for length in row["seq_lengths"] for place in range(length)]
        assert row["attention_mask"] == [1] * len(ids)
    return [[label != -100 for label in row["labels"]] for row in table]


def olmo(folder: Path, rows: Rows) -> Masks:
    masks = [np.fromfile(path, bool) for path in sorted(folder.glob("*.mask"))]
    return [row.tolist() for mask in masks for row in mask.reshape(-1, rows.length)]


def mds(folder: Path, rows: Rows) -> Masks:
    read = []
    for shard in json.loads((folder / "index.json").read_bytes())["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        encodings = [encoding.split(":") for encoding in shard["column_encodings"]]
        sample = np.dtype(
            [
                (name, f"({length},){np.dtype(dtype).str}")
                for name, (_, dtype, length) in zip(shard["column_names"], encodings, strict=True)
            ]
        )
        for begin, _ in pairwise(np.frombuffer(data, "<u4", shard["samples"] + 1, 4).tolist()):
            read.append(np.frombuffer(data, sample, 1, begin)[0]["loss_mask"].astype(bool).tolist())
    return read


def litdata(folder: Path, rows: Rows) -> Masks:
    index, read = json.loads((folder / "index.json").read_bytes()), []
    place = json.loads(json.loads(index["config"]["data_spec"])[1]["context"]).index("loss_mask")
    for chunk in index["chunks"]:
        data = (folder / chunk["filename"]).read_bytes()
        for begin, _ in pairwise(np.frombuffer(data, "<u4", chunk["chunk_size"] + 1, 4).tolist()):
            columns = len(index["config"]["data_format"])
            sizes = np.frombuffer(data, "<u4", columns, begin).tolist()
            at = begin + 4 * columns + sum(sizes[:place])
            read.append([byte == 1 for byte in data[at : at + sizes[place]]])
    return read


READERS: dict[str, Callable[[Path, Rows], Masks]] = {
    reader.__name__: reader for reader in (parquet, olmo, mds, litdata)
}


def check(name: str, rows: Rows, shard_bytes: int = 1 << 20) -> None:
    with tempfile.TemporaryDirectory() as path:
        for by_workers in (False, True):
            folder = Folder(Path(path) / str(by_workers), by_workers=by_workers)
            folder.path.mkdir()
            options = Options(tag=TAG, shard_bytes=shard_bytes, columns=tuple(COLUMNS))
            FORMATS[name].write(rows, folder, options)  # type: ignore[arg-type]
            read = READERS[name](folder.path, rows)
            whole = masks_of(rows)
            if name != "parquet":
                whole = [[*mask, *[False] * (rows.length - len(mask))] for mask in whole]
            assert read == whole


def test_every_format_that_has_a_mask_is_tested() -> None:
    assert READERS.keys() == {name for name, form in FORMATS.items() if form.masks}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_every_mask_reads_back(name: str, data: st.DataObject) -> None:
    corpus = data.draw(arguments())
    rows = rows_of(**corpus, index=FORMATS[name].epochs == "index", masked=True)
    with drawn_memory(data):
        check(name, rows, data.draw(st.sampled_from([1, 100, 1 << 20])))


@pytest.mark.parametrize("name", READERS)
def test_without_a_mask_no_file_knows_of_one(name: str, tmp_path: Path) -> None:
    rows, folder = rows_of([30, 4], index=FORMATS[name].epochs == "index"), Folder(tmp_path)
    FORMATS[name].write(rows, folder, Options(tag=TAG, shard_bytes=1 << 20))  # type: ignore[arg-type]
    assert not any("trained" in file or file.endswith(".mask") for file in folder.entries) or rows.padded
    assert b"loss_mask" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_further_columns_of_text_without_a_mask_train_on_every_token(tmp_path: Path) -> None:
    rows, folder = rows_of([30, 4], index=False), Folder(tmp_path)
    options = Options(tag=TAG, shard_bytes=1 << 20, columns=("labels", "assistant_masks"))
    FORMATS["parquet"].write(rows, folder, options)  # type: ignore[arg-type]
    (path,) = tmp_path.glob("*.parquet")
    ids = [[token for _, _, ids in runs for token in ids] for runs in runs_of(rows)]
    table = pq.read_table(path)
    assert table["labels"].to_pylist() == ids
    assert table["assistant_masks"].to_pylist() == [[1] * len(row) for row in ids]
    assert table.schema.field("assistant_masks").type.value_type == "int8"
