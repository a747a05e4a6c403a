"""Every format read back by its documented layout, with NumPy and pyarrow alone.

A reader gives the rows in training order, epoch after epoch, each as the ids of its documents; of a format that does
not mark documents, as one. What is padding it leaves out, and it checks that it is the padding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from dagster_divorder.write.exports.rows import Rows
from tests.write.exports.made import TAG

Read = list[list[list[int]]]


def _cut(ids: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    assert lengths.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def parquet(folder: Path, rows: Rows) -> Read:
    import pyarrow.parquet as pq

    tables = [pq.read_table(path).to_pylist() for path in sorted(folder.glob("train-*.parquet"))]
    return [
        _cut(np.array(row["input_ids"]), np.array(row["seq_lengths"])) for table in tables for row in table
    ]


def megatron(folder: Path, rows: Rows) -> Read:
    head = np.dtype([("magic", "S9"), ("version", "<u8"), ("code", "u1"), ("items", "<u8"), ("ends", "<u8")])
    data = (folder / f"train-{TAG}.idx").read_bytes()
    index = np.frombuffer(data, head, 1)[0]
    assert index["magic"] == b"MMIDIDX" and index["version"] == 1 and head.itemsize == 34
    items, dtype = int(index["items"]), {8: np.dtype("<u2"), 4: np.dtype("<i4")}[int(index["code"])]
    lengths = np.frombuffer(data, "<i4", items, 34)
    pointers = np.frombuffer(data, "<i8", items, 34 + 4 * items)
    np.testing.assert_array_equal(
        np.frombuffer(data, "<i8", offset=34 + 12 * items), np.arange(index["ends"])
    )
    assert index["ends"] == items + 1
    ids = np.fromfile(folder / f"train-{TAG}.bin", dtype)
    assert lengths.sum() == len(ids)
    at = [
        ids[first : first + length].tolist()
        for first, length in zip(pointers // dtype.itemsize, lengths, strict=True)
    ]
    begins = np.load(folder / f"train.{TAG}.doc_rows.npy")
    return [at[begins[row] : begins[row + 1]] for row in _epochs(folder, len(begins) - 1)]


def _epochs(folder: Path, rows: int) -> list[int]:
    path = folder / f"train.{TAG}.epochs.npy"
    order: list[int] = (np.load(path) if path.exists() else np.arange(rows)).reshape(-1).tolist()
    return order


def olmo(folder: Path, rows: Rows) -> Read:
    dtype = "<u2" if rows.stored.vocabulary <= 1 << 16 else "<u4"
    read: Read = []
    for path in sorted(folder.glob("train-*.npy")):
        ids = np.fromfile(path, dtype)
        kept = np.ones(len(ids), bool)
        if rows.padded:
            tokens = rows.tokens[len(read) :][: len(ids) // rows.length]
            kept = (np.arange(rows.length) < tokens[:, None]).ravel()
            assert rows.trained or (np.fromfile(path.with_suffix(".mask"), bool) == kept).all()
        assert (ids[~kept] == rows.stored.padding).all()
        for row, of_row in zip(ids.reshape(-1, rows.length), kept.reshape(-1, rows.length), strict=True):
            read.append([row[of_row].tolist()])
    order = []
    for epoch in range(1, len(rows.epochs) + 1):
        name = f"global_indices_dataset_size{len(read)}_epoch{epoch}_seed0_v1.npy"
        order += np.fromfile(folder / name, "<u4").tolist()
    assert order == _epochs(folder, len(read))
    return [read[row] for row in order]


def ds(folder: Path, rows: Rows) -> Read:
    read: Read = []
    for path in sorted(folder.glob("train-*.ds")):
        ids = np.fromfile(path, "<u2" if rows.stored.vocabulary <= 1 << 16 else "<u4")
        ends = np.fromfile(f"{path}.index", "<u8").astype(int)
        for first in range(0, len(ids), rows.length):
            row_ends = ends[(first < ends) & (ends <= first + rows.length)]
            runs = _cut(ids[first : first + rows.length], np.diff(row_ends, prepend=first))
            missing = rows.length - int(rows.tokens[len(read)])
            assert runs[-1][len(runs[-1]) - missing :] == [rows.stored.special["eos"]] * missing
            read.append([*runs[:-1], runs[-1][: len(runs[-1]) - missing]])
    return read


def _samples(data: bytes) -> tuple[bytes, list[bytes]]:
    """What a file of MDS or litdata has before its samples, and these, cut where its table says."""
    count = int.from_bytes(data[:4], "little")
    offsets = np.frombuffer(data, "<u4", count + 1, 4).tolist()
    assert offsets[-1] == len(data)
    samples = [data[begin:end] for begin, end in pairwise(offsets)]
    return data[4 * (count + 2) : offsets[0]], samples


def _unpadded(rows: Rows, ids: np.ndarray, mask: np.ndarray | None) -> list[list[int]]:
    assert (mask is not None) is rows.padded
    kept = np.ones(len(ids), bool) if mask is None else mask.astype(bool)
    assert (ids[~kept] == rows.stored.padding).all()
    return [ids[kept].tolist()]


Columns = dict[str, np.ndarray]
"""A row of a format of samples."""


def mds_rows(folder: Path, rows: Rows) -> Iterator[Columns]:
    for shard in json.loads((folder / "index.json").read_bytes())["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        head, samples = _samples(data)
        assert json.loads(head).items() <= shard.items()
        assert (len(data), len(samples)) == (shard["raw_data"]["bytes"], shard["samples"])
        types = [encoding.split(":") for encoding in shard["column_encodings"]]
        assert {(kind, int(length)) for kind, _, length in types} == {("ndarray", rows.length)}
        columns = [
            (name, f"{rows.length}{np.dtype(dtype).str}")
            for name, (_, dtype, _) in zip(shard["column_names"], types, strict=True)
        ]
        assert shard["column_sizes"] == [np.dtype(dtype).itemsize for _, dtype in columns]
        for sample in samples:
            (row,) = np.frombuffer(sample, columns)
            yield {name: row[name] for name, _ in columns}


def litdata_rows(folder: Path, rows: Rows) -> Iterator[Columns]:
    index = json.loads((folder / "index.json").read_bytes())
    types = {"no_header_tensor:11": "u1", "no_header_tensor:16": "<i4", "no_header_tensor:20": "<u2"}
    names = json.loads(json.loads(index["config"]["data_spec"])[1]["context"])
    for chunk in index["chunks"]:
        data = (folder / chunk["filename"]).read_bytes()
        head, samples = _samples(data)
        assert (len(data), len(samples), head) == (chunk["chunk_bytes"], chunk["chunk_size"], b"")
        for sample in samples:
            leaves, at = {}, 4 * len(names)
            sizes = np.frombuffer(sample, "<u4", len(names)).tolist()
            for name, size, code in zip(names, sizes, index["config"]["data_format"], strict=True):
                leaves[name] = np.frombuffer(sample[at : at + size], types[code])
                at += size
            assert at == len(sample) and {len(leaf) for leaf in leaves.values()} == {rows.length}
            yield leaves


def mds(folder: Path, rows: Rows) -> Read:
    return [_unpadded(rows, row["tokens"], row.get("attention_mask")) for row in mds_rows(folder, rows)]


def litdata(folder: Path, rows: Rows) -> Read:
    return [
        _unpadded(rows, row["input_ids"], row.get("attention_mask")) for row in litdata_rows(folder, rows)
    ]


UNMARKED = ("olmo", "mds", "litdata")
"""Formats that do not mark documents."""
READERS: dict[str, Callable[[Path, Rows], Read]] = {
    "parquet": parquet,
    "megatron": megatron,
    "olmo": olmo,
    "ds": ds,
    "mds": mds,
    "litdata": litdata,
}
