"""JSONL files whose lines are written where they belong, while the records are read in the order in which they lie.

Every record passes through memory once and is written once: the system's cache of the files puts the lines together.
Guarantee: the bytes that `permute` writes otherwise. Cost: a call of the system a line, some 2 microseconds beside the
copying, which is why short lines are taken in memory, or through files, instead. Memory: two fragments, and 16 bytes
a record. Known weakness: what is larger than the cache would be written to the disk page by page, most of them twice.
Measured: docs/decisions/speed.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from dagster_divorder.engine.memory import CACHED_BYTES
from dagster_divorder.engine.progress import Advance
from dagster_divorder.settings.places import Place
from dagster_divorder.store.output_manifests import entry_of
from dagster_divorder.write.curated import OutputFolder

LINE_BYTES = 1024
"""Lines of this many bytes in the mean, or more, are written one by one."""
LINE_FEED = b"\n"


def can_stage_in_place(place: Place, sizes: np.ndarray) -> bool:
    """Whether lines of these sizes, int (N,), are long enough, and few enough for the system's cache, in a folder of a
    system that can write them so."""
    total = int(sizes.sum())
    long = total >= LINE_BYTES * len(sizes)
    few = total <= CACHED_BYTES
    return long and few and isinstance(place, Path) and hasattr(os, "pwritev")


def stage_in_place(
    output: OutputFolder,
    arrays: Iterable[tuple[np.ndarray, np.ndarray, pa.Array]],
    sizes: np.ndarray,
    begins: Mapping[str, int],
    advance: Advance,
) -> None:
    """Stage files of lines, by name, each from an output position on, which follow each other.

    Args:
        arrays: output positions, the lines of an array that come there, and the array, large_binary, without line feeds
            (`rows_by_array`).
        sizes: int (M,), bytes of the line at each output position.
        advance: told of the lines written.

    Raises:
        StoreError: see `OutputFolder.stage`.
    """
    assert isinstance(output.path, Path)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + np.int64(1), out=offsets[1:])
    limits = np.array(list(begins.values()))
    with output.explaining(), contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open(output.path / output.draw(name), "w+b")) for name in begins]
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
            # The disk takes what is hashed meanwhile.
            saved = [threads.submit(os.fsync, file.fileno()) for file in opened]
            for name, file in zip(begins, opened, strict=True):
                output.entries[name] = entry_of(file)
            for each in saved:
                each.result()


def _write(data: memoryview, low: list[int], high: list[int], file: list[int], offset: list[int]) -> None:
    """Write the lines data[low:high] with their line feeds to descriptors, at offsets."""
    write = os.pwritev
    for first, end, to, at in zip(low, high, file, offset, strict=True):
        left = end - first + 1 - write(to, (data[first:end], LINE_FEED), at)
        if left:
            # A full disk, or a very long line, takes a part; the next call goes on, or says why not.
            rest = bytes(data[first:end]) + LINE_FEED
            while left:
                left -= os.pwrite(to, rest[-left:], at + len(rest) - left)
