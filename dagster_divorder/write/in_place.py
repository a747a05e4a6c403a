"""JSONL files whose lines are written where they belong, while the records are read in the order in which they lie.

Every record passes through memory once and is written once: the system's cache of the files puts the lines together.
Guarantee: the bytes of `gather` and `WriteRecords`. Cost: a call of the system a line, some 2 microseconds beside the
copying, which is why short lines are gathered in memory, or through files, instead. Memory: two fragments, and 16 bytes
a record. Known weakness: what is larger than the cache would be written to the disk page by page, most of them twice.
Measured: docs/decisions/speed.md.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dagster_divorder.engine.ahead import ahead
from dagster_divorder.engine.memory import main_memory
from dagster_divorder.engine.progress import Advance
from dagster_divorder.settings.places import Place
from dagster_divorder.store.output_manifests import entry_of
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.gather import Content, scattered_rows

LINE_BYTES = 1024
"""Lines of this many bytes in the mean, or more, are written one by one."""
CACHE_PART = 16
"""Of main memory such a part may be written. From a tenth on Linux begins to write to the disk by itself, pages that
are yet to be filled among them: 4.3 GB of 24 took 15 s, and 25 s where an older output lay there."""
LINE_FEED = b"\n"


def can_stage_in_place(place: Place, sizes: np.ndarray) -> bool:
    """Whether lines of these sizes, int (N,), are long enough, and few enough for the system's cache, in a folder of a
    system that can write them so."""
    total = int(sizes.sum())
    long = total >= LINE_BYTES * len(sizes)
    few = total <= main_memory() // CACHE_PART
    return long and few and isinstance(place, Path) and hasattr(os, "pwritev")


def stage_in_place(
    output: OutputFolder,
    contents: Sequence[Content],
    start: np.ndarray,
    rows: np.ndarray,
    sizes: np.ndarray,
    files: Mapping[str, tuple[int, int]],
    advance: Advance,
) -> None:
    """Stage files of lines, each of output positions [first, end), by name, which follow each other from 0 to M.

    Args:
        contents: make the arrays, large_binary, of lines without line feeds; start, int64 (arrays + 1,): where each
            begins when they are laid end to end, and the end.
        rows: int64 (M,), output position -> row.
        sizes: int (M,), bytes of the line at each output position.
        advance: told of the lines written.

    Raises:
        StoreError: see `OutputFolder.stage`.
    """
    assert isinstance(output.path, Path)
    begins = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + np.int64(1), out=begins[1:])
    limits = np.array([first for first, _ in files.values()])
    with output.explaining(), contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open(output.path / output.draw(name), "w+b")) for name in files]
        descriptors = np.array([file.fileno() for file in opened])
        # Closed before the files are, also where a write fails.
        arrays = stack.enter_context(contextlib.closing(ahead(content() for content in contents)))
        for positions, at, lines in scattered_rows(arrays, start, rows, advance):
            of_file = np.searchsorted(limits, positions, side="right") - 1
            _, offsets, data = lines.buffers()
            bounds = np.frombuffer(offsets, np.int64)[lines.offset :]
            _write(
                memoryview(data),
                bounds[at].tolist(),
                bounds[at + 1].tolist(),
                descriptors[of_file].tolist(),
                (begins[positions] - begins[limits[of_file]]).tolist(),
            )
        with ThreadPoolExecutor(2, thread_name_prefix="divorder-hash") as threads:
            # The disk takes what is hashed meanwhile.
            saved = [threads.submit(os.fsync, file.fileno()) for file in opened]
            for name, file in zip(files, opened, strict=True):
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
