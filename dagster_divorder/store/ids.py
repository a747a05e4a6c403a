"""128-bit content ids, and an index of them in sorted arrays.

An id is the first 128 bits of a BLAKE3 hash, so nobody can make two contents with one id. In memory an id is two uint64
words, high word first; word order is byte order.
Memory: 12 bytes an id (16 from 2^32 ids on), and two more parts while levels merge. Whole ids lie in a temporary file,
or take 16 to 32 bytes more. Cost: a lookup is a binary search in each of at most log2(N / first batch) sorted levels.
It also reads the file if a level holds the first half of the id.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from blake3 import blake3

from dagster_divorder.store.arrays import compact
from dagster_divorder.store.disk import explain_os_error

ID_BYTES = 16
_PART_IDS = 1 << 20
"""Approximate ids in a part of a level."""

Content = bytes | memoryview


def hash_all(values: Iterable[Content]) -> bytes:
    """Concatenated 16-byte ids of byte strings."""
    return b"".join([blake3(value).digest(ID_BYTES) for value in values])


def words(ids: bytes | memoryview) -> np.ndarray:
    """Concatenated 16-byte ids as uint64 (n, 2)."""
    return np.frombuffer(ids, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def to_bytes(ids: np.ndarray) -> bytes:
    """uint64 (n, 2) as concatenated 16-byte ids."""
    return ids.astype(">u8").tobytes()


def hex_ids(ids: np.ndarray) -> list[str]:
    """uint64 (n, 2) as n strings of 32 hex digits."""
    digits = to_bytes(ids).hex()
    return [digits[at : at + 2 * ID_BYTES] for at in range(0, len(digits), 2 * ID_BYTES)]


@dataclass(frozen=True, slots=True)
class Distinct:
    """Distinct ids among n ids. first: first position of each distinct id, int64 (distinct,) rising. inverse: int64
    (n,), with ids[first][inverse] == ids."""

    first: np.ndarray
    inverse: np.ndarray


def distinct(ids: np.ndarray) -> Distinct:
    """Distinct ids, in the order of their first occurrence. ids: uint64 (n, 2)."""
    # Ids are usually all distinct; the first words show that at a twentieth of the cost.
    high = np.sort(ids[:, 0])
    if not (high[1:] == high[:-1]).any():
        return Distinct(np.arange(len(ids)), np.arange(len(ids)))
    # A stable sort keeps equal ids in input order.
    order = np.lexsort((ids[:, 1], ids[:, 0]))
    ordered = ids[order]
    starts = np.ones(len(ids), dtype=bool)
    starts[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    group = np.cumsum(starts) - 1
    first = order[starts]
    by_first = np.argsort(first)
    place = np.empty_like(by_first)
    place[by_first] = np.arange(len(first))
    inverse = np.empty(len(ids), dtype=np.int64)
    inverse[order] = place[group]
    return Distinct(first[by_first], inverse)


_Part = tuple[np.ndarray, np.ndarray]
"""First halves of ids, uint64 rising, and their rows."""


class IdIndex:
    """Id -> row number, for rows added in batches.

    Sorted levels of geometrically growing size are merged as batches arrive (a log-structured merge). Adding N ids
    costs O(N log N) in all, without a Python object for each id. The first bits of the ids cut a level into parts;
    levels merge part by part.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """folder: place of the unnamed file of whole ids; None keeps whole ids in memory."""
        self.size = 0
        self._levels: list[list[_Part]] = []
        self._ids = np.empty((0, 2), np.uint64)
        self._folder = folder
        # Without a buffer, closing the file does not repeat a failed write.
        self._file = tempfile.TemporaryFile(buffering=0, dir=folder) if folder else None  # noqa: SIM115

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, ids: np.ndarray) -> np.ndarray:
        """Add new ids, uint64 (n, 2), as the next rows; returns their row numbers, int64 (n,)."""
        rows = np.arange(self.size, self.size + len(ids), dtype=np.int64)
        if len(ids):
            self._keep(ids)
            self.size += len(ids)
            self._levels.append([_sort(ids[:, 0], compact(rows))])
        while len(self._levels) > 1 and _size(self._levels[-2]) < 2 * _size(self._levels[-1]):
            self._levels.append(_merge(self._levels.pop(), self._levels.pop()))
        return rows

    def _keep(self, ids: np.ndarray) -> None:
        if self._file is not None and self._folder is not None:
            unwritten = np.ascontiguousarray(ids).view(np.uint8).ravel()
            try:
                while len(unwritten):
                    unwritten = unwritten[self._file.write(unwritten.data) :]
            except OSError as error:
                size = ID_BYTES * (self.size + len(ids))
                raise explain_os_error(error, self._folder, size, "the ids of what is read") from error
            return
        end = self.size + len(ids)
        if end > len(self._ids):
            grown = np.empty((max(end, 2 * len(self._ids)), 2), np.uint64)
            grown[: self.size] = self._ids[: self.size]
            self._ids = grown
        self._ids[self.size : end] = ids

    def ids(self, rows: np.ndarray) -> np.ndarray:
        """The ids of rows, uint64 (n, 2)."""
        if self._file is None or not len(rows):
            return self._ids.take(rows, axis=0)
        # The file is mapped for this read alone, so its pages do not stay in this process's memory.
        return np.asarray(np.memmap(self._file, np.uint64, "r", shape=(self.size, 2))[rows])

    def first_halves(self, chosen: np.ndarray) -> np.ndarray:
        """The first halves of the ids of the chosen rows, uint64 (chosen,), in no order. chosen: bool (size,)."""
        parts = [high[chosen[rows]] for level in self._levels for high, rows in level]
        return np.concatenate([np.empty(0, np.uint64), *parts])

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Row number of each id, int64 (n,); -1 for a missing id. ids: uint64 (n, 2)."""
        # Lookups by rising id share cache lines: twice as fast in a large index.
        by_id = np.argsort(ids[:, 0])
        # `take` copies rows in a tenth of the time of an index.
        ids = ids.take(by_id, axis=0)
        sorted_rows = np.full(len(ids), -1, dtype=np.int64)
        for level in self._levels:
            missing = np.flatnonzero(sorted_rows < 0)
            if not len(missing):
                break
            cuts = np.searchsorted(ids[missing, 0], _bounds(0, len(level), len(level)))
            for part, (low, end) in zip(level, pairwise([0, *cuts.tolist(), len(missing)]), strict=True):
                if low < end:
                    of_part = missing[low:end]
                    sorted_rows[of_part] = self._find(part, ids.take(of_part, axis=0))
        rows = np.empty_like(sorted_rows)
        rows[by_id] = sorted_rows
        return rows

    def _find(self, part: _Part, ids: np.ndarray) -> np.ndarray:
        """Row of each id in one part; -1 for a missing id."""
        high, part_rows = part
        rows = np.full(len(ids), -1, dtype=np.int64)
        pending = np.arange(len(ids))
        at = np.searchsorted(high, ids[:, 0])
        # Ids that share a first half are neighbours, in no order. They are rare: only adversarial input needs more
        # than one step.
        while True:
            inside = at < len(high)
            pending, at = pending[inside], at[inside]
            inside = high[at] == ids[pending, 0]
            pending, at = pending[inside], at[inside]
            if not len(pending):
                return rows
            hit = self.ids(part_rows[at])[:, 1] == ids[pending, 1]
            rows[pending[hit]] = part_rows[at[hit]]
            pending, at = pending[~hit], at[~hit] + 1


def places(wanted: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Position of each wanted id, uint64 (n, 2), among distinct ids, uint64 (H, 2): int64 (n,), -1 if missing. A third
    to a half of the time of an `IdIndex`, whose searches wait for memory."""
    if not len(ids):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(ids[:, 0])
    high, low = (ids[:, half].take(order) for half in (0, 1))
    first, second = (np.ascontiguousarray(wanted[:, half]) for half in (0, 1))
    # The first bits of an id say where to begin. Ids are hashes, so few ids share these bits.
    shift = np.uint64(64 - len(ids).bit_length())
    slots = np.bincount((high >> shift).astype(np.int64), minlength=int(~np.uint64(0) >> shift) + 1)
    at = (np.cumsum(slots) - slots).take((first >> shift).astype(np.int64))
    last = len(ids) - 1
    pending = np.arange(len(wanted))
    while len(pending):
        here = np.minimum(at[pending], last)
        behind = high.take(here) < first.take(pending)
        # Ids that share a first half are neighbours, in no order.
        behind |= (high.take(here) == first.take(pending)) & (low.take(here) != second.take(pending))
        pending = pending[behind & (at[pending] <= last)]
        at[pending] += 1
    here = np.minimum(at, last)
    found = (at <= last) & (high.take(here) == first) & (low.take(here) == second)
    return np.where(found, order.take(here), -1)


def _size(level: list[_Part]) -> int:
    return sum(len(high) for high, _ in level)


def _merge(upper: list[_Part], lower: list[_Part]) -> list[_Part]:
    """Merge two levels into one, part by part; empties both."""
    number = 1 << ((_size(upper) + _size(lower)) // _PART_IDS).bit_length()
    return [
        _sort(*(np.concatenate(column) for column in zip(*pieces, strict=True)))
        for pieces in zip(_cut(lower, number), _cut(upper, number), strict=True)
    ]


def _sort(high: np.ndarray, rows: np.ndarray) -> _Part:
    # numpy's stable sort is timsort: merging two sorted runs takes linear time.
    order = np.argsort(high, kind="stable")
    return high[order], rows[order]


def _cut(level: list[_Part], number: int) -> Iterator[_Part]:
    """Cut a level into `number` parts; empties the level. number: a power of 2, at least the level's own parts."""
    each = number // len(level)
    level.reverse()
    for first in range(0, number, each):
        high, rows = level.pop()
        cuts = np.searchsorted(high, _bounds(first, first + each, number)).tolist()
        for low, end in pairwise([0, *cuts, len(high)]):
            yield high[low:end], rows[low:end]


def _bounds(first: int, end: int, number: int) -> np.ndarray:
    """Smallest first half of an id in each part after `first` and before `end`. number: parts, a power of 2."""
    return np.arange(first + 1, end, dtype=np.uint64) * np.uint64((1 << 64) // number if number > 1 else 0)
