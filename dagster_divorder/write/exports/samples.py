"""The sample files of MDS and litdata: a table of offsets, then the samples (little-endian).

    u32 n, u32 offset[n + 1] from the start of the file, a head, the samples.

All samples of an export have the same size, so the samples are a structured array and need no loop. Offsets end at
4 GiB; files are smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO

import numpy as np

from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports.file_rows import FileRows, IdBlock
from dagster_divorder.write.exports.format import Options
from dagster_divorder.write.exports.rows import Rows

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
    write = partial(_write, sample=sample, head=head, lead=lead)
    rows.stage(folder, {name(number): span for number, span in enumerate(shards)}, write)
    counts = [end - first for first, end in shards]
    return [(count, 4 * (count + 2) + len(head) + itemsize * count) for count in counts]


def _write(
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
