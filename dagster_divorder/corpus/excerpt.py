"""A sample of an input, drawn without reading all of it, and the estimated size of all records.

Guarantee: the same input gives the same excerpt. Records of plain and Parquet files come evenly from everywhere. The
place where a record begins decides whether it is drawn, so long and short records are equally likely. Cost: reads
WINDOWS places (REMOTE_WINDOWS at URLs), and unpacks up to COMPRESSED_BYTES of compressed files. Known weakness: a
compressed file can only be read from its beginning. Beyond COMPRESSED_BYTES the beginnings of COMPRESSED_FILES files
represent all, and their ratio gives the size of the rest.
"""

from __future__ import annotations

import codecs
import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from dagster_divorder.corpus.compression import decompressed
from dagster_divorder.corpus.file_states import PrefixHashes
from dagster_divorder.corpus.find import Found
from dagster_divorder.corpus.inputs import is_plain, read_batches, readable, row_groups
from dagster_divorder.settings import MAX_RECORD_BYTES
from dagster_divorder.store.sources import RemoteFile, Source, identity, open_source

if TYPE_CHECKING:
    import pyarrow as pa

WINDOWS = 256
REMOTE_WINDOWS = 8
"""Every read at a URL fetches a piece of 8 MB."""
COMPRESSED_BYTES = 256 << 20
COMPRESSED_FILES = 16
STRETCH_BYTES = 1 << 16
"""Bytes of each stretch that is taken from the content of a compressed file, at even distances."""
USUAL_RATIO = 4
"""Assumed ratio of text to compressed bytes, before reading any."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Records of one input in random order: lines, or Parquet rows of one schema. name: path of the input's first file.
    bytes: size of these records, uncompressed (for rows, in memory). total: estimated size of all records of the input.
    stored: size of the input's files."""

    name: str
    records: list[bytes] | pa.Table
    bytes: int
    total: float
    stored: int

    def first(self, share: float) -> Excerpt:
        """The first records with about this share of the bytes; at least one record."""
        if isinstance(self.records, list):
            ends = np.cumsum([len(line) for line in self.records])
            count = max(1, int(np.searchsorted(ends, share * self.bytes, side="right")))
            taken = self.records[:count]
            return replace(self, records=taken, bytes=sum(map(len, taken)))
        rows = self.records.slice(0, max(1, round(share * self.records.num_rows)))
        return replace(self, records=rows, bytes=rows.nbytes)

    def write(self, folder: Path, name: str) -> Path:
        """Writes these records as one plain file."""
        if isinstance(self.records, list):
            path = folder / f"{name}.jsonl"
            path.write_bytes(b"".join(self.records))
        else:
            import pyarrow.parquet as pq

            path = folder / f"{name}.parquet"
            pq.write_table(self.records, path)
        return path


def draw(corpus_input: Found, wanted: int) -> Excerpt:
    """About `wanted` bytes of an input's records, or all of them. Skips records longer than MAX_RECORD_BYTES.

    Raises:
        InputError: a file cannot be read.
    """
    files = corpus_input.files
    sizes = [int(identity(path)[0]) for path in files]
    if corpus_input.kind == "parquet":
        return _rows(files, sizes, wanted)
    if all(map(is_plain, files)):
        lines, total = list(_plain(files, sizes, wanted)), float(sum(sizes))
    else:
        lines, total = _compressed(files, sizes, wanted)
    order = np.random.default_rng(0).permutation(len(lines))
    return Excerpt(str(files[0]), [lines[at] for at in order], sum(map(len, lines)), total, sum(sizes))


def _windows(files: Sequence[Source], wanted: int, total: int) -> list[tuple[int, int]]:
    """Evenly spaced windows [first, end) of `total` bytes, together `wanted` bytes; or one window over all."""
    if total <= wanted:
        return [(0, total)]
    count = REMOTE_WINDOWS if any(isinstance(path, RemoteFile) for path in files) else WINDOWS
    begins = [total * at // count for at in range(count)]
    return [(begin, begin + max(1, wanted // count)) for begin in begins]


def _plain(files: Sequence[Source], sizes: Sequence[int], wanted: int) -> Iterator[bytes]:
    """Lines of plain files that begin in the windows; all files count as laid end to end."""
    ends = list(accumulate(sizes))
    for first, end in _windows(files, wanted, ends[-1]):
        at = bisect_right(ends, first)
        while at < len(files) and first < end:
            start = ends[at] - sizes[at]
            with readable(files[at], PrefixHashes()), open_source(files[at]) as raw:
                yield from _lines(io.BufferedReader(raw), first - start, end - start)  # type: ignore[type-var]
            first, at = ends[at], at + 1


def _lines(file: IO[bytes], first: int, end: int) -> Iterator[bytes]:
    """Lines, each with a newline, that begin in bytes [first, end) of a file."""
    file.seek(max(0, first - 1))
    if first and not _line(file):
        return
    while file.tell() < end:
        at_beginning = not file.tell()
        if not (line := _line(file)):
            return
        yield line.removeprefix(codecs.BOM_UTF8) if at_beginning else line


def _line(file: IO[bytes]) -> bytes:
    """The next line, with a newline; b"" at the end, or if the line is too long."""
    line = file.readline(MAX_RECORD_BYTES)
    if line.endswith(b"\n"):
        return line
    return line + b"\n" if line and len(line) < MAX_RECORD_BYTES else b""


def _compressed(files: Sequence[Source], sizes: Sequence[int], wanted: int) -> tuple[list[bytes], float]:
    """Lines of plain and compressed files, and the estimated bytes of all their lines."""
    chosen = range(0, len(files), -(-len(files) // COMPRESSED_FILES))
    budget = COMPRESSED_BYTES // len(chosen)
    likely = sum(min(budget, USUAL_RATIO * sizes[at]) for at in chosen)
    every = max(1, likely // wanted)
    lines, read, taken, whole = [], 0, 0, True
    for at in chosen:
        with readable(files[at], PrefixHashes()), open_source(files[at]) as raw:
            plain = is_plain(files[at])
            file = io.BufferedReader(raw) if plain else decompressed(raw, files[at].suffix)  # type: ignore[type-var]
            here = 0
            while here < budget and (line := file.readline(MAX_RECORD_BYTES)):
                if here // STRETCH_BYTES % every == 0:
                    whole_line = line if line.endswith(b"\n") else line + b"\n"
                    lines.append(whole_line if here else whole_line.removeprefix(codecs.BOM_UTF8))
                here += len(line)
            ended = here < budget
            read += here
            taken += sizes[at] if ended else here if plain else raw.tell()
            whole &= ended
    return lines, float(read) if whole and len(chosen) == len(files) else read / max(1, taken) * sum(sizes)


def _rows(files: Sequence[Source], sizes: Sequence[int], wanted: int) -> Excerpt:
    """The first rows of evenly chosen row groups of Parquet files."""
    import pyarrow as pa

    chosen = range(0, len(files), -(-len(files) // WINDOWS))
    groups = []
    for at in chosen:
        first = 0
        for rows, size in row_groups(files[at]):
            if rows:
                groups.append((at, first, rows, size))
            first += rows
    counted, size = sum(group[2] for group in groups), sum(group[3] for group in groups)
    if not counted:
        return Excerpt(str(files[0]), [], 0, 0.0, sum(sizes))
    count = REMOTE_WINDOWS if isinstance(files[0], RemoteFile) else WINDOWS
    picked = groups[:: -(-len(groups) // count)] if size > wanted else groups
    each = -(-counted * wanted // max(1, size) // len(picked)) if size > wanted else counted
    batches: list[pa.RecordBatch] = []
    for at, first, rows, _ in picked:
        missing = min(each, rows)
        for batch in read_batches(files[at], None, within=(first, first + missing)):
            batches.append(batch[:missing])
            missing -= batch.num_rows
            if missing <= 0:
                break
    table = pa.Table.from_batches(batches)
    order = np.random.default_rng(0).permutation(table.num_rows)
    total = counted * sum(sizes) / max(1, sum(sizes[at] for at in chosen))
    size = table.nbytes
    return Excerpt(str(files[0]), table.take(order), size, size * total / table.num_rows, sum(sizes))
