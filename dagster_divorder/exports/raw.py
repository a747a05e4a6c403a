"""Files of raw numbers, little-endian, and the small ones beside them by which a reader opens all in constant time.

Letters: R rows, Q runs of tokens in them, E epochs, L tokens a sequence.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.exports.format import Options
from dagster_divorder.exports.rows import Rows
from dagster_divorder.store.curated import OutputFolder, write_numbers


def stage_rows(
    rows: Rows, folder: OutputFolder, options: Options, dtype: np.dtype, padding: int, suffix: str
) -> dict[str, tuple[int, int]]:
    """Stage the ids, L a row, in files without a header; the first row of each file and its end, by the file's name.

    Names are of one length and sort as text in the order of the rows. padding: the id that fills up shorter rows.
    """
    shards = rows.shards(dtype.itemsize * rows.length, options.shard_bytes)
    width = max(5, len(str(len(shards))))
    parts = (block.padded(rows.length, padding, dtype) for block in rows.blocks())
    named = {}
    for number, writer in enumerate(write_numbers(parts, [end for _, end in shards])):
        name = f"train-{number:0{width}d}-of-{len(shards):0{width}d}{suffix}"
        folder.stage(name, writer)
        named[name] = shards[number]
    return named


def stage_index(rows: Rows, folder: OutputFolder) -> None:
    """Stage `train.doc_rows.npy`, int64 (R + 1,), where the runs of each row begin, and where there is more than one
    epoch `train.epochs.npy`, int64 (E, R), the rows that each reads."""
    stage_array(folder, "train.doc_rows.npy", rows.indptr)
    if len(rows.epochs) > 1:
        stage_array(folder, "train.epochs.npy", rows.epochs)


def stage_array(folder: OutputFolder, name: str, array: np.ndarray) -> None:
    """Stage an array as NumPy saves it."""
    folder.stage(name, lambda file: np.save(file, array))
