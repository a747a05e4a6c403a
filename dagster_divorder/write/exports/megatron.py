"""megatron: `train-TAG.bin` and `train-TAG.idx`, one prefix, read by Megatron-LM, Megatron-Core and NeMo.

    train-TAG.bin      the ids of all rows, concatenated without padding, uint16 (int32 if an id does not fit)
    train-TAG.idx      an item and a document per run of tokens: its length and its begin
    train.TAG.doc_rows.npy   int64 (R + 1,), the first item of each row, and the end
    train.TAG.epochs.npy     int64 (E, R), the rows of each epoch, if there are several
    megatron_cache.py  makes Megatron read these rows in this order; without it, Megatron shuffles

TAG is 8 hex digits of the export's key. A row is a sample of L tokens; L is the model's sequence length. The last label
of a sample is masked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports import megatron_cache
from dagster_divorder.write.exports.raw import stage_array, stage_epochs
from dagster_divorder.write.exports.rows import FileRows, Format, IdBlock, Options, Rows, fits_uint16

CODES = {"int32": 4, "uint16": 8}
"""Megatron's numbers for dtypes; uint32 has no number."""


def _write(rows: Rows, folder: OutputFolder, options: Options) -> Mapping[str, Any]:
    dtype = np.dtype("<u2" if fits_uint16(rows) else "<i4")
    prefix = f"train-{options.tag}"
    write = partial(_write_ids, dtype=dtype)
    rows.stage(folder, {f"{prefix}.bin": (0, len(rows))}, write)
    folder.stage(f"{prefix}.idx", lambda file: _write_items(file, rows.runs.length, dtype))
    stage_array(folder, options, "doc_rows", rows.runs.indptr)
    stage_epochs(rows, folder, options)
    script = Path(megatron_cache.__file__).read_bytes()
    folder.stage(Path(megatron_cache.__file__).name, lambda file: file.write(script))
    return {"dtype": dtype.name, "rows_of_files": [len(rows)]}


def _write_ids(file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes], *, dtype: np.dtype) -> None:
    for block in blocks:
        file.write(block.ids.astype(dtype, copy=False).data)


def _write_items(file: IO[bytes], lengths: np.ndarray, dtype: np.dtype) -> None:
    """Write the index of items with these lengths, int64 (Q,)."""
    file.write(struct.pack("<9sQBQQ", b"MMIDIDX", 1, CODES[dtype.name], len(lengths), len(lengths) + 1))
    file.write(lengths.astype("<i4").data)
    file.write(((np.cumsum(lengths) - lengths) * dtype.itemsize).astype("<i8", copy=False).data)
    file.write(np.arange(len(lengths) + 1, dtype="<i8").data)


MEGATRON = Format(
    name="megatron",
    write=_write,
    names=r"train.*|megatron_cache\.py",
    epochs="index",
)
