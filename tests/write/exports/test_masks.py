"""The loss mask of every format that has one, token for token against the mask found slowly."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.write.exports import FORMATS
from dagster_divorder.write.exports.rows import Options, Rows
from tests.conftest import examples
from tests.write.exports.layouts import litdata_rows, mds_rows
from tests.write.exports.made import TAG, Folder, arguments, drawn_memory, masks_of, rows_of

Masks = list[list[bool]]


def parquet(folder: Path, rows: Rows) -> Masks:
    table = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    for row in table:
        ids, labels = row["input_ids"], row["labels"]
        assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
    return [[label != -100 for label in row["labels"]] for row in table]


def olmo(folder: Path, rows: Rows) -> Masks:
    masks = [np.fromfile(path, bool) for path in sorted(folder.glob("*.mask"))]
    return [row.tolist() for mask in masks for row in mask.reshape(-1, rows.length)]


def mds(folder: Path, rows: Rows) -> Masks:
    return [row["loss_mask"].astype(bool).tolist() for row in mds_rows(folder, rows)]


def litdata(folder: Path, rows: Rows) -> Masks:
    return [row["loss_mask"].astype(bool).tolist() for row in litdata_rows(folder, rows)]


READERS: dict[str, Callable[[Path, Rows], Masks]] = {
    reader.__name__: reader for reader in (parquet, olmo, mds, litdata)
}


def check(name: str, rows: Rows, shard_bytes: int = 1 << 20) -> None:
    with tempfile.TemporaryDirectory() as path:
        options = Options(tag=TAG, shard_bytes=shard_bytes, labels=True)
        FORMATS[name].write(rows, Folder(Path(path)), options)  # type: ignore[arg-type]
        read = READERS[name](Path(path), rows)
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
