"""A part of an input that stands for all of it, drawn without reading the rest, and how large all of it is.

Guarantee: the same input gives the same excerpt. Of a plain file, and of Parquet, the records come evenly from
everywhere, a record for where it begins, so that long ones are no likelier than short ones.
Cost: WINDOWS places are looked at (REMOTE_WINDOWS at URLs); of compressed files up to COMPRESSED_BYTES are unpacked.
Known weakness: a compressed file cannot be entered in its middle. Beyond COMPRESSED_BYTES the beginnings of
COMPRESSED_FILES files stand for all, and the size of what the rest holds follows from their ratio.
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
"""A piece of a file at a URL is 8 MB, whatever is wanted of it."""
COMPRESSED_BYTES = 256 << 20
COMPRESSED_FILES = 16
STRETCH_BYTES = 1 << 16
"""Of what a compressed file holds, stretches of this size are taken whole, evenly."""
USUAL_RATIO = 4
"""Of text to its compressed bytes, before any has been read."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some records of one input, in a random order: lines, or Parquet rows of one schema. name: of its first file;
    bytes: of these records, uncompressed (of rows in memory); total: of all records of the input, estimated; stored: of
    its files, as they lie there."""

    name: str
    records: list[bytes] | pa.Table
    bytes: int
    total: float
    stored: int

    def first(self, share: float) -> Excerpt:
        """The first records, about this share of the bytes of these, and at least one."""
        if isinstance(self.records, list):
            ends = np.cumsum([len(line) for line in self.records])
            count = max(1, int(np.searchsorted(ends, share * self.bytes, side="right")))
            taken = self.records[:count]
            return replace(self, records=taken, bytes=sum(map(len, taken)))
        rows = self.records.slice(0, max(1, round(share * self.records.num_rows)))
        return replace(self, records=rows, bytes=rows.nbytes)

    def write(self, folder: Path, name: str) -> Path:
        """These records as one plain file."""
        if isinstance(self.records, list):
            path = folder / f"{name}.jsonl"
            path.write_bytes(b"".join(self.records))
        else:
            import pyarrow.parquet as pq

            path = folder / f"{name}.parquet"
            pq.write_table(self.records, path)
        return path


def draw(found: Found, wanted: int) -> Excerpt:
    """About `wanted` bytes of an input's records; all of it where it has no more. What begins as a record and has not
    ended after MAX_RECORD_BYTES is left out.

    Raises:
        InputError: a file cannot be read.
    """
    sizes = [int(identity(path)[0]) for path in found.files]
    if found.kind == "parquet":
        return _rows(found.files, sizes, wanted)
    if all(map(is_plain, found.files)):
        lines, total = list(_plain(found.files, sizes, wanted)), float(sum(sizes))
    else:
        lines, total = _compressed(found.files, sizes, wanted)
    order = np.random.default_rng(0).permutation(len(lines))
    return Excerpt(str(found.files[0]), [lines[at] for at in order], sum(map(len, lines)), total, sum(sizes))


def _windows(files: Sequence[Source], wanted: int, total: int) -> list[tuple[int, int]]:
    """Bytes [first, end) of what is `total` long, evenly, or all of it."""
    if total <= wanted:
        return [(0, total)]
    count = REMOTE_WINDOWS if any(isinstance(path, RemoteFile) for path in files) else WINDOWS
    begins = [total * at // count for at in range(count)]
    return [(begin, begin + max(1, wanted // count)) for begin in begins]


def _plain(files: Sequence[Source], sizes: Sequence[int], wanted: int) -> Iterator[bytes]:
    """Lines of plain files, those that begin in some windows of all files laid end to end."""
    ends = list(accumulate(sizes))
    for first, end in _windows(files, wanted, ends[-1]):
        at = bisect_right(ends, first)
        while at < len(files) and first < end:
            start = ends[at] - sizes[at]
            with readable(files[at], PrefixHashes()), open_source(files[at]) as raw:
                yield from _lines(io.BufferedReader(raw), first - start, end - start)  # type: ignore[type-var]
            first, at = ends[at], at + 1


def _lines(file: IO[bytes], first: int, end: int) -> Iterator[bytes]:
    """The lines, each with a newline, that begin in bytes [first, end) of a file."""
    file.seek(max(0, first - 1))
    if first and not _line(file):
        return
    while file.tell() < end:
        at_beginning = not file.tell()
        if not (line := _line(file)):
            return
        yield _without_bom(line) if at_beginning else line


def _line(file: IO[bytes]) -> bytes:
    """The next line, with a newline; nothing where there is none, or none that ends."""
    line = file.readline(MAX_RECORD_BYTES)
    if line.endswith(b"\n"):
        return line
    return line + b"\n" if line and len(line) < MAX_RECORD_BYTES else b""


def _without_bom(line: bytes) -> bytes:
    """A file's first line: among others, the mark that begins it would be part of a record."""
    return line.removeprefix(codecs.BOM_UTF8)


def _compressed(files: Sequence[Source], sizes: Sequence[int], wanted: int) -> tuple[list[bytes], float]:
    """Lines of files of which some are compressed, and the bytes that all hold, estimated."""
    chosen = range(0, len(files), -(-len(files) // COMPRESSED_FILES))
    budget = COMPRESSED_BYTES // len(chosen)
    likely = sum(min(budget, USUAL_RATIO * sizes[at]) for at in chosen)
    every = max(1, likely // wanted)
    lines, read, taken, whole = [], 0, 0, True
    for at in chosen:
        with readable(files[at], PrefixHashes()), open_source(files[at]) as raw:
            plain = is_plain(files[at])
            file = io.BufferedReader(raw) if plain else decompressed(raw, files[at].suffix)  # type: ignore[type-var]
            held = 0
            while held < budget and (line := file.readline(MAX_RECORD_BYTES)):
                if held // STRETCH_BYTES % every == 0:
                    whole_line = line if line.endswith(b"\n") else line + b"\n"
                    lines.append(whole_line if held else _without_bom(whole_line))
                held += len(line)
            ended = held < budget
            read += held
            taken += sizes[at] if ended else held if plain else raw.tell()
            whole &= ended
    return lines, float(read) if whole and len(chosen) == len(files) else read / max(1, taken) * sum(sizes)


def _rows(files: Sequence[Source], sizes: Sequence[int], wanted: int) -> Excerpt:
    """Rows of Parquet files: the first ones of some row groups."""
    import pyarrow as pa

    chosen = range(0, len(files), -(-len(files) // WINDOWS))
    groups = [
        (at, first, rows, size)
        for at in chosen
        for (rows, size), first in _with_starts(row_groups(files[at]))
        if rows
    ]
    counted, size = sum(group[2] for group in groups), sum(group[3] for group in groups)
    if not counted:
        return Excerpt(str(files[0]), [], 0, 0.0, sum(sizes))
    count = REMOTE_WINDOWS if isinstance(files[0], RemoteFile) else WINDOWS
    picked = groups[:: -(-len(groups) // count)] if size > wanted else groups
    each = -(-counted * wanted // max(1, size) // len(picked)) if size > wanted else counted
    batches: list[pa.RecordBatch] = []
    for at, first, rows, _ in picked:
        left = min(each, rows)
        for batch in read_batches(files[at], None, within=(first, first + left)):
            batches.append(batch[:left])
            left -= batch.num_rows
            if left <= 0:
                break
    table = pa.Table.from_batches(batches)
    order = np.random.default_rng(0).permutation(table.num_rows)
    total = counted * sum(sizes) / max(1, sum(sizes[at] for at in chosen))
    held = table.nbytes
    return Excerpt(str(files[0]), table.take(order), held, held * total / table.num_rows, sum(sizes))


def _with_starts(groups: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], int]]:
    """Row groups, each with the number of rows before it."""
    first = 0
    for group in groups:
        yield group, first
        first += group[0]
