"""mds and litdata, formats of sample files: a table of offsets, then the samples (little-endian).

    u32 n, u32 offset[n + 1] from the start of the file, a head, the samples.

All samples of an export have the same size, so the samples are a structured array and need no loop. Offsets end at
4 GiB; files are smaller. Both formats equal the files of their own writers byte for byte.

mds: MosaicML's shards, read by `streaming.StreamingDataset` and llm-foundry. Columns: `tokens`, `ndarray:uint16:L`
(`uint32` if an id does not fit); `attention_mask`, `ndarray:uint8:L`, if any row is padded; `loss_mask`,
`ndarray:uint8:L`, if any token is not trained on. In `shard.TAG.00000.mds`, TAG is 8 hex digits of the export's key.

litdata: Lightning's chunks, read by `litdata.StreamingDataset`. A sample is a dict of tensors (L,): "input_ids", uint16
(int32 if an id does not fit, since litdata has no uint32), and the same masks. In `chunk-TAG-0.bin`, TAG is a decimal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any

import numpy as np

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.rows import FileRows, Format, IdBlock, Options, Rows, fits_uint16

MASK = "attention_mask"
LOSS_MASK = "loss_mask"
BYTE = np.dtype("u1")


def mask_columns(rows: Rows) -> dict[str, np.dtype]:
    """The mask columns of a sample, by name: MASK if any row is padded, LOSS_MASK if any token is not trained on."""
    masks = {MASK: rows.padded, LOSS_MASK: rows.trained is not None}
    return {name: BYTE for name, present in masks.items() if present}


def stage_samples(
    rows: Rows,
    folder: OutputFolder,
    options: Options,
    name: Callable[[int], str],
    columns: Mapping[str, np.dtype],
    head: bytes = b"",
    lead: bytes = b"",
) -> list[tuple[int, int]]:
    """Stage the row files; returns (samples, bytes) of each file.

    name: returns a file's name for its number. columns: a sample's columns, L values each. MASK is 1 for a token and 0
    for padding. LOSS_MASK is 1 for a token that is trained on, else 0. Other columns hold the ids. head: bytes before
    the samples of a file. lead: bytes before the columns of a sample.
    """
    sample = np.dtype([(column, dtype, (rows.length,)) for column, dtype in columns.items()])
    itemsize = len(lead) + sample.itemsize
    shards = rows.shards(4 + itemsize, options.shard_bytes - 8 - len(head))
    write = partial(_write_samples, sample=sample, head=head, lead=lead)
    rows.stage(folder, {name(number): span for number, span in enumerate(shards)}, write)
    counts = [end - first for first, end in shards]
    return [(count, 4 * (count + 2) + len(head) + itemsize * count) for count in counts]


def _write_samples(
    file_rows: FileRows,
    blocks: Iterator[IdBlock],
    file: IO[bytes],
    *,
    sample: np.dtype,
    head: bytes,
    lead: bytes,
) -> None:
    itemsize = len(lead) + sample.itemsize
    offset = 4 * (len(file_rows) + 2) + len(head) + itemsize * np.arange(len(file_rows) + 1)
    file.write(np.concatenate([[len(file_rows)], offset]).astype("<u4").tobytes() + head)
    for block in blocks:
        samples = np.empty((len(block.tokens), itemsize), np.uint8)
        samples[:, : len(lead)] = np.frombuffer(lead, np.uint8)
        columns = samples[:, len(lead) :].view(sample)[:, 0]
        for column in sample.names or ():
            if column == MASK:
                columns[column] = block.filled(file_rows.length)
            elif column == LOSS_MASK:
                columns[column] = block.trained
            else:
                dtype = columns[column].dtype
                columns[column] = block.padded(file_rows.length, file_rows.padding, dtype)
        file.write(samples.data)


def _write_mds(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    dtype = np.dtype("<u2" if fits_uint16(rows) else "<u4")
    # Readers sort the columns by name.
    columns = {**mask_columns(rows), "tokens": dtype}
    config = {
        "column_encodings": [f"ndarray:{column.name}:{rows.length}" for column in columns.values()],
        "column_names": list(columns),
        "column_sizes": [column.itemsize * rows.length for column in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": options.shard_bytes,
        "version": 2,
    }
    head = json.dumps(config).encode()
    shard = f"shard.{options.tag}.{{:05d}}.mds"
    files = stage_samples(rows, folder, options, shard.format, columns, head=head)
    shards = [
        {
            **config,
            "raw_data": {"basename": shard.format(number), "bytes": size, "hashes": {}},
            "samples": samples,
            "zip_data": None,
        }
        for number, (samples, size) in enumerate(files)
    ]
    index = json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()
    folder.stage("index.json", lambda file: file.write(index))
    return {"dtype": dtype.name, "rows_of_files": [samples for samples, _ in files]}


MDS = Format(
    name="mds",
    write=_write_mds,
    names=r"shard\..*\.mds|index\.json",
    masks=True,
)


CODES = {"uint8": 11, "int32": 16, "uint16": 20}
"""litdata's numbers for torch dtypes."""


def _write_litdata(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    dtype = np.dtype("<u2" if fits_uint16(rows) else "<i4")
    columns = {"input_ids": dtype, **mask_columns(rows)}
    sizes = [column.itemsize * rows.length for column in columns.values()]
    lead = np.array(sizes, "<u4").tobytes()
    # litdata's own names have the writer's rank in place of the tag.
    chunk = f"chunk-{int(options.tag, 16)}-{{}}.bin"
    files = stage_samples(rows, folder, options, chunk.format, columns, lead=lead)
    chunks = [
        {"chunk_bytes": size, "chunk_size": samples, "dim": None, "filename": chunk.format(number)}
        for number, (samples, size) in enumerate(files)
    ]
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    tree = {
        "type": "builtins.dict",
        "context": json.dumps(list(columns)),
        "children_spec": [leaf] * len(columns),
    }
    config = {
        "chunk_bytes": None,
        "chunk_size": files[0][0],
        "compression": None,
        "compression_batch_size": None,
        "compression_level": None,
        "data_format": [f"no_header_tensor:{CODES[column.name]}" for column in columns.values()],
        "data_spec": json.dumps([1, tree]),
        "encryption": None,
        "ipc_compression": None,
        "item_loader": "PyTreeLoader",
        "types": dict.fromkeys(columns, "tensor"),
    }
    # litdata stores a time in `updated_at`. When the value changes, it downloads an export from a bucket again.
    hashes = [folder.entries[chunk.format(number)]["sha256"] for number in range(len(files))]
    content = hashlib.sha256("".join(hashes).encode()).hexdigest()
    index = {"chunks": chunks, "config": config, "updated_at": content}
    data = json.dumps(index, sort_keys=True).encode()
    folder.stage("index.json", lambda file: file.write(data))
    return {"dtype": dtype.name, "rows_of_files": [samples for samples, _ in files]}


LITDATA = Format(
    name="litdata",
    write=_write_litdata,
    names=r"chunk-.*\.bin|index\.json",
    contiguous_ranks=True,
    masks=True,
)
