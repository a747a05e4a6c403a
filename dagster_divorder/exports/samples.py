"""Files of samples behind a table of where each begins, as MDS and litdata have them (little-endian):

    u32 n, u32 offset[n + 1] from the start of the file, a head, the samples.

All samples of an export are equally large, so that a file is its table and a structured array, without a loop over
samples. No file reaches 4 GiB, where offsets end: `exports.shard_bytes` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from dagster_divorder.exports.format import Options
from dagster_divorder.exports.rows import Rows
from dagster_divorder.store.curated import OutputFolder, write_numbers

MASK = "attention_mask"


def stage_samples(
    rows: Rows,
    folder: OutputFolder,
    options: Options,
    name: Callable[[int], str],
    columns: Mapping[str, np.dtype],
    head: bytes = b"",
    lead: bytes = b"",
) -> list[tuple[int, int]]:
    """Stage the files of rows; samples and bytes of each.

    name: of a file, by its number. columns: what a sample holds, L values each: MASK is 1 where there is a token and 0
    where there is padding, any other the ids. head: what precedes the samples of a file; lead: what precedes the
    columns of a sample.
    """
    sample = np.dtype([(column, dtype, (rows.length,)) for column, dtype in columns.items()])
    itemsize = len(lead) + sample.itemsize
    shards = rows.shards(4 + itemsize, options.shard_bytes - 8 - len(head))
    samples = _samples(rows, sample, np.frombuffer(lead, np.uint8))
    found = []
    for number, writer in enumerate(write_numbers(samples, [end for _, end in shards])):
        first, end = shards[number]
        offset = 4 * (end - first + 2) + len(head) + itemsize * np.arange(end - first + 1)
        begin = np.concatenate([[end - first], offset]).astype("<u4").tobytes() + head
        folder.stage(name(number), lambda file, begin=begin, writer=writer: (file.write(begin), writer(file)))  # type: ignore[misc]
        found.append((end - first, int(offset[-1])))
    return found


def _samples(rows: Rows, sample: np.dtype, lead: np.ndarray) -> Iterator[np.ndarray]:
    """The bytes of all samples in blocks, uint8 (n, bytes of one)."""
    for block in rows.blocks():
        samples = np.empty((len(block.tokens), len(lead) + sample.itemsize), np.uint8)
        samples[:, : len(lead)] = lead
        columns = samples[:, len(lead) :].view(sample)[:, 0]
        for column in sample.names or ():
            dtype = columns[column].dtype
            columns[column] = (
                block.filled(rows.length)
                if column == MASK
                else block.padded(rows.length, rows.stored.padding, dtype)
            )
        yield samples
