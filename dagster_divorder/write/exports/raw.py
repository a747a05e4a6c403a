"""Files of raw numbers, little-endian, and small index files beside them; a reader opens them in constant time.

Letters: R rows, Q runs of tokens in them, E epochs, L tokens a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO

import numpy as np

from dagster_divorder.store.manifests import NEIGHBOUR, TRAINED
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.file_rows import FileRows, IdBlock, WriteRows
from dagster_divorder.write.exports.format import Options, fits_uint16
from dagster_divorder.write.exports.rows import Rows


def row_files(rows: Rows, options: Options, dtype: np.dtype, suffix: str) -> dict[str, tuple[int, int]]:
    """The rows (first, end) of each file of ids, by file name.

    All names have the same length, so they sort as text in row order.
    """
    shards = rows.shards(dtype.itemsize * rows.length, options.shard_bytes)
    width = max(5, len(str(len(shards))))
    return {
        f"train-{options.tag}-{number:0{width}d}-of-{len(shards):0{width}d}{suffix}": span
        for number, span in enumerate(shards)
    }


def stage_raw(
    rows: Rows,
    folder: OutputFolder,
    options: Options,
    suffix: str,
    padding: int,
    beside: Mapping[str, WriteRows] | None = None,
) -> tuple[np.dtype, dict[str, tuple[int, int]]]:
    """Stage files of ids, uint16 (uint32 if an id does not fit); returns their dtype and `row_files`. padding: the id
    that fills up short rows. beside: see `Rows.stage`."""
    dtype = np.dtype("<u2" if fits_uint16(rows) else "<u4")
    files, write = row_files(rows, options, dtype, suffix), partial(write_rows, dtype=dtype, padding=padding)
    sizes = np.broadcast_to(np.int64(rows.length * dtype.itemsize), (len(rows),))
    rows.stage(folder, files, write, beside=beside, sizes=sizes)
    return dtype, files


def write_rows(
    file_rows: FileRows, blocks: Iterator[IdBlock], file: IO[bytes], *, dtype: np.dtype, padding: int
) -> None:
    """Write the ids, L a row."""
    for block in blocks:
        file.write(block.padded(file_rows.length, padding, dtype).data)


def stage_index(rows: Rows, folder: OutputFolder, options: Options) -> None:
    """Stage `train.TAG.doc_rows.npy`, int64 (R + 1,): the first run of each row, and the end. With several epochs also
    stage `train.TAG.epochs.npy`, int64 (E, R): the rows of each epoch."""
    stage_array(folder, options, "doc_rows", rows.indptr)
    if len(rows.epochs) > 1:
        stage_array(folder, options, "epochs", rows.epochs)


def stage_trained(rows: Rows, folder: OutputFolder, options: Options) -> None:
    """Stage `_/train.TAG.trained.npy` (store/manifests.py) if any token is not trained on."""
    if rows.trained:
        stretches = np.stack([rows.trained.first, rows.trained.last])
        folder.stage(f"{NEIGHBOUR}train.{options.tag}.{TRAINED}", lambda file: np.save(file, stretches))


def stage_array(folder: OutputFolder, options: Options, name: str, array: np.ndarray) -> None:
    """Stage an array as NumPy saves it."""
    folder.stage(f"train.{options.tag}.{name}.npy", lambda file: np.save(file, array))
