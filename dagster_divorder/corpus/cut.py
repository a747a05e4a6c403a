"""Cuts the input into fragments by its content.

A *primary* cut stands behind a line whose hash, with that of the line before it, is small; its chance grows with the
line's length. A *hard* cut stands where a fragment is full. So an edit makes only the fragments around it again.

Law: any division of the input into ranges gives the fragments of one pass. A range owns the fragments behind the
primary cuts that lie in it, and reads on to the first primary cut at or behind its end.

Source: content-defined chunking (Muthitacharoen, Chen and Mazieres 2001), as Parquet files have it for Xet storage.
Known weakness: a file's first line has none before it, so a file that is split or joined makes a fragment again there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from dagster_divorder.corpus.inputs import NOTHING, Block

MEAN_BYTES, MEAN_LINES = 16 << 20, 8192
"""Mean size of what lies between two primary cuts, whichever comes first."""
HARD_BYTES, HARD_LINES = 64 << 20, 1 << 15
"""A fragment that reaches one of these is full."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_ALL = 2.0**64


class Place(NamedTuple):
    """A line of the input: the number of its file, and its offset (or row) there."""

    file: int
    offset: int


@dataclass(slots=True)
class Lines:
    """The lines of one fragment, as blocks with the numbers of their files. size: bytes of all. raw: hashes what plain
    files hold of them. primary: whether its end is a primary cut."""

    parts: list[tuple[int, Block]] = field(default_factory=list)
    count: int = 0
    size: int = 0
    raw: blake3 = field(default_factory=blake3)
    primary: bool = False

    def add(self, file: int, block: Block, size: int) -> None:
        self.raw.update(block.raw)
        self.parts.append((file, replace(block, raw=NOTHING)))
        self.count, self.size = self.count + len(block), size


def cut(
    blocks: Iterable[tuple[int, Block]],
    begin: Place,
    end: Place | None = None,
    *,
    owned: bool = True,
    borders: Set[int] = frozenset(),
) -> Iterator[Lines]:
    """The fragments that a range owns, in order.

    Args:
        blocks: (number of the file, block) from the range's beginning on, or from an earlier line of its file.
        begin: lines before it only say what line precedes the range.
        end: the first line behind the range; None if the range ends with the blocks.
        owned: whether the range begins at a primary cut, where the input does, or at a border.
        borders: files before which a primary cut stands whatever their lines are; it belongs to the range behind it.
    """
    lines = Lines()
    file_before, previous = begin.file, np.uint64(0)
    for file, block in blocks:
        if file != file_before:
            # Files between may be empty.
            if crossed := borders & {*range(file_before + 1, file + 1)}:
                if lines.parts:
                    lines.primary = True
                    yield lines
                    lines = Lines()
                if end is not None and Place(max(crossed), 0) >= end:
                    return
                owned = True
            file_before, previous = file, np.uint64(0)
        primary, previous = _primary(block, previous)
        at = int(np.searchsorted(block.starts, begin.offset)) if file == begin.file else 0
        behind = len(block) if end is None or file < end.file else 0
        if end is not None and file == end.file:
            behind = int(np.searchsorted(block.starts, end.offset))
        for stop in [*(np.flatnonzero(primary[at:]) + at + 1).tolist(), len(block)]:
            is_primary = stop > at and bool(primary[stop - 1])
            while owned and at < stop:
                # The first line with which the fragment is full.
                grown = lines.size + np.cumsum(block.sizes[at:stop])
                full = min(int(np.searchsorted(grown, HARD_BYTES)), HARD_LINES - lines.count - 1)
                until = min(stop, at + full + 1)
                lines.add(file, block.lines(at, until), int(grown[until - at - 1]))
                lines.primary = until == stop and is_primary
                if at + full + 1 <= stop or lines.primary:
                    yield lines
                    lines = Lines()
                at = until
            at = stop
            if is_primary and stop > behind:
                return
            owned |= is_primary
        if not owned and end is not None and file >= end.file and len(block) > behind:
            return
    if lines.parts:
        lines.primary = file_before + 1 in borders
        yield lines


def _primary(block: Block, previous: np.uint64) -> tuple[np.ndarray, np.uint64]:
    """(Behind which lines of a block a primary cut stands, bool (n,); the first half of the last line's id). previous:
    that of the line before the block; 0 for none. None stands behind a line that repeats, which would cut again and
    again."""
    primary = np.zeros(len(block), bool)
    at = np.flatnonzero(~block.blank)
    if len(at):
        high = block.ids[at, 0]
        before = np.concatenate([[previous], high[:-1]]).astype(np.uint64)
        chance = np.minimum(np.maximum(block.sizes[at] / MEAN_BYTES, 1 / MEAN_LINES), 1.0)
        limit = np.minimum(chance * _ALL, np.nextafter(_ALL, 0)).astype(np.uint64)
        primary[at] = (before * _MULTIPLIER + high < limit) & (before != high)
        previous = high[-1]
    return primary, previous
