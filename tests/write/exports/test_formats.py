"""What is written in a format is read back by its layout: token for token, boundary for boundary, in order."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.store.manifests import NEIGHBOUR
from dagster_divorder.store.view import Fragment
from dagster_divorder.write import permute as permute_module
from dagster_divorder.write.exports import FORMATS
from dagster_divorder.write.exports import rows as rows_module
from dagster_divorder.write.exports.rows import FileRows, IdBlock, Options, Rows
from tests.conftest import examples
from tests.write.exports.layouts import READERS, UNMARKED, litdata_rows, mds_rows
from tests.write.exports.made import (
    TAG,
    Folder,
    Unwritten,
    arguments,
    blocks_of,
    drawn_memory,
    masks_of,
    rows_of,
    runs_of,
)

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


MASKS: dict[str, Callable[[Path, Rows], Masks]] = {
    reader.__name__: reader for reader in (parquet, olmo, mds, litdata)
}


def made(name: str, **corpus: Any) -> Rows:
    return rows_of(**corpus, index=FORMATS[name].epochs == "index")


def check(name: str, rows: Rows, shard_bytes: int = 1 << 20) -> None:
    """Write rows in a format, and read them back."""
    with tempfile.TemporaryDirectory() as path:
        folder, again = Folder(Path(path) / name), Folder(Path(path) / name)
        folder.path.mkdir()
        options = Options(tag=TAG, shard_bytes=shard_bytes, labels=rows.trained is not None)
        about = FORMATS[name].write(rows, folder, options)  # type: ignore[arg-type]
        read = READERS[name](folder.path, rows)
        if rows.trained is not None:
            masks = masks_of(rows)
            if name != "parquet":
                masks = [[*mask, *[False] * (rows.length - len(mask))] for mask in masks]
            assert MASKS[name](folder.path, rows) == masks
        else:
            assert not any("trained" in file for file in folder.entries)
            assert b"loss_mask" not in b"".join(file.read_bytes() for file in folder.path.iterdir())
        FORMATS[name].write(rows, again, options)  # type: ignore[arg-type]
        beside = {NEIGHBOUR + file.name for file in Path(path).glob(f"_{name}/*")}
        assert {file.name for file in again.path.iterdir()} | beside == again.entries.keys()
    whole = [[ids for _, _, ids in runs] for runs in runs_of(rows)]
    if name in UNMARKED:
        whole = [[[token for ids in runs for token in ids]] for runs in whole]
    assert read == [whole[row] for row in rows.epochs.reshape(-1)]
    assert sum(about["rows_of_files"]) == len(rows)
    # In the order in which they are staged, which is that of the manifest.
    assert list(again.entries.items()) == list(folder.entries.items())


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_every_format_reads_back(name: str, data: st.DataObject) -> None:
    corpus = data.draw(arguments())
    if name == "ds":
        corpus["method"] = "concat"
    rows = made(name, **corpus, masked=FORMATS[name].masks and data.draw(st.booleans()))
    with drawn_memory(data):
        check(name, rows, data.draw(st.sampled_from([1, 100, 1 << 20])))


@pytest.mark.parametrize("name", FORMATS)
def test_ids_of_two_bytes_take_two_wherever_the_trainer_reads_them(name: str) -> None:
    with tempfile.TemporaryDirectory() as path:
        dtypes = {
            vocabulary: FORMATS[name].write(
                made(name, lengths=[9], vocabulary=vocabulary),
                Folder(Path(path)),  # type: ignore[arg-type]
                Options(tag=TAG, shard_bytes=1000),
            )["dtype"]
            for vocabulary in (1 << 16, (1 << 16) + 1)
        }
    wide = {"megatron": "int32", "litdata": "int32"}.get(name, "uint32")
    expected = ["int32", "int32"] if name == "parquet" else ["uint16", wide]
    assert list(dtypes.values()) == expected


def test_every_format_that_has_a_mask_is_tested() -> None:
    assert MASKS.keys() == {name for name, form in FORMATS.items() if form.masks}


def test_ds_refuses_what_it_cannot_mark() -> None:
    FORMATS["ds"].check(rows_of([5, 5], method="concat", epochs=3, index=False))
    with pytest.raises(InputError, match=r'2 sequences hold fewer than 8 tokens.*packing\.method = "concat"'):
        FORMATS["ds"].check(rows_of([5, 5], method="best_fit", index=False))
    with pytest.raises(InputError, match=r"sequence\.length is 1;"):
        FORMATS["ds"].check(rows_of([5, 5], length=1, index=False))


class Large:
    """Fragments of 1 MB that are made when they are read."""

    def listed(self) -> Large:
        return self

    def column(self, fragments: Sequence[Fragment], name: str) -> np.ndarray:
        return np.full(len(fragments) * 16, 1 << 15, np.int64)

    def mapped(self, fragments: Sequence[Fragment], name: str) -> Iterator[np.ndarray]:
        for fragment in fragments:
            yield np.full(1 << 19, int(fragment.name), np.uint16)


@pytest.mark.slow
def test_what_exceeds_the_memory_is_written_with_less(tmp_path: Path) -> None:
    rows = rows_of([1 << 15] * 16 * 32, length=1 << 12, end_of_text=False)
    view = replace(rows.stored.view, pieces=tuple(Fragment(str(n), 16) for n in range(32)))
    stored = replace(rows.stored, files=Large(), view=view)  # type: ignore[arg-type]
    rows = replace(rows, stored=stored)
    count = 0

    def read(file_rows: FileRows, blocks: Iterator[IdBlock], file: object) -> None:
        nonlocal count
        for block in blocks:
            assert block.ids[0] == file_rows.runs.document[file_rows.runs.indptr[block.first]] // 16
            count += block.ids.nbytes

    with (
        mock.patch.object(rows_module, "MAPPED_BYTES", 0),
        mock.patch.object(permute_module, "BUCKET_BYTES", 1 << 20),
        mock.patch.object(rows_module, "BLOCK_BYTES", 1 << 19),
    ):
        rows_of([30]).gather()  # loads numba
        tracemalloc.start()
        rows.stage(Unwritten(tmp_path), {"": (0, len(rows))}, read)  # type: ignore[arg-type]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert count == 32 << 20
    assert peak < 12 << 20
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("memory", [1 << 30, 100], ids=["in memory", "through files"])
def test_a_plan_or_ids_that_do_not_fit_are_refused_before_anything_is_copied(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What copies ids checks no address."""
    monkeypatch.setattr(rows_module, "MAPPED_BYTES", memory)
    rows = rows_of([30, 40])
    beyond = replace(rows.plan, start=rows.plan.start + 1000)
    with pytest.raises(StoreError, match="names tokens that its documents do not have"):
        blocks_of(replace(rows, plan=beyond))
    # A fragment with fewer ids than its documents count.
    rows = rows_of([30, 40])
    assert rows.stored.lengths.tolist() == [30, 40]
    documents = rows.stored.files.documents  # type: ignore[attr-defined]
    documents[1] = documents[1][:-1]
    with pytest.raises(StoreError, match="holds 69 ids of uint16 for fragment 0, expected 70 of uint16"):
        blocks_of(rows)


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_files_are_as_large_as_asked(name: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    FORMATS[name].write(rows_of([2400], index=False), folder, Options(tag=TAG, shard_bytes=2000))  # type: ignore[arg-type]
    *full, _ = [entry["bytes"] for file, entry in folder.entries.items() if file != "index.json"]
    assert len(full) > 1
    assert all(2000 - 24 < size <= 2000 for size in full)


def test_litdata_is_fetched_anew_when_its_rows_change(tmp_path: Path) -> None:
    def updated_at(seed: int) -> str:
        FORMATS["litdata"].write(
            rows_of([40], index=False, seed=seed), Folder(tmp_path), Options(tag=TAG, shard_bytes=200)
        )  # type: ignore[arg-type]
        value: str = json.loads((tmp_path / "index.json").read_bytes())["updated_at"]
        return value

    assert updated_at(1) == updated_at(1) != updated_at(2)
