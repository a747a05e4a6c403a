"""Writes each line of JSONL files at its offset, while records are read in stored order.

Every record is read once and written once; the system's file cache assembles the lines.
Guarantee: the same bytes as the other ways of `permute`.
Cost: a system call a line, some 2 microseconds besides copying; short lines go through memory or files instead.
Memory: two fragments, and 16 bytes a record.
Known weakness: beyond the cache's size, most pages would be written to disk twice. Measured: docs/decisions/speed.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa

from dagster_divorder.engine.memory import CACHED_BYTES
from dagster_divorder.engine.progress import Advance
from dagster_divorder.store.output_manifests import entry_of
from dagster_divorder.write.curated import OutputFolder

LINE_BYTES = 1024
"""Mean size from which lines are written one by one."""


def can_stage_in_place(sizes: np.ndarray) -> bool:
    """Whether lines of these sizes, int (N,), are long on average and fit the file cache."""
    total = int(sizes.sum())
    long = total >= LINE_BYTES * len(sizes)
    few = total <= CACHED_BYTES
    return long and few and hasattr(os, "pwritev")


def stage_in_place(
    output: OutputFolder,
    arrays: Iterable[tuple[np.ndarray, np.ndarray, pa.Array]],
    sizes: np.ndarray,
    begins: Mapping[str, int],
    advance: Advance,
) -> None:
    """Stage consecutive files of lines.

    Args:
        arrays: from `rows_by_array`: output positions, rows, and the array, large_binary, without line feeds.
        sizes: int (M,), bytes of the line at each output position.
        begins: the first output position of each file, by file name.
        advance: called with numbers of written lines.

    Raises:
        StoreError: see `OutputFolder.stage`.
    """
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + np.int64(1), out=offsets[1:])
    limits = np.array(list(begins.values()))
    with output.explaining(), contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open(output.here.source(output.draw(name)), "w+b")) for name in begins]
        descriptors = np.array([file.fileno() for file in opened])
        for positions, rows, lines in arrays:
            of_file = np.searchsorted(limits, positions, side="right") - 1
            _, ends, data = lines.buffers()
            bounds = np.frombuffer(ends, np.int64)[lines.offset :]
            _write(
                memoryview(data),
                bounds[rows].tolist(),
                bounds[rows + 1].tolist(),
                descriptors[of_file].tolist(),
                (offsets[positions] - offsets[limits[of_file]]).tolist(),
            )
            advance(len(rows))
        with ThreadPoolExecutor(2, thread_name_prefix="divorder-hash") as threads:
            # Hashing runs while the disk writes.
            saved = [threads.submit(os.fsync, file.fileno()) for file in opened]
            for name, file in zip(begins, opened, strict=True):
                output.entries[name] = entry_of(file)
            for future in saved:
                future.result()


def _write(data: memoryview, low: list[int], high: list[int], file: list[int], offset: list[int]) -> None:
    """Write the lines data[low:high], each with a line feed, to the descriptors `file` at the offsets."""
    write = os.pwritev
    for first, end, descriptor, at in zip(low, high, file, offset, strict=True):
        unwritten = end - first + 1 - write(descriptor, (data[first:end], b"\n"), at)
        if unwritten:
            # On a full disk, or for a very long line, a call writes a part. The next call continues or raises.
            line = bytes(data[first:end]) + b"\n"
            while unwritten:
                unwritten -= os.pwrite(descriptor, line[-unwritten:], at + len(line) - unwritten)
