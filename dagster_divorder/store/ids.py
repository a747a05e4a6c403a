"""128-bit content ids, and an index of them in sorted arrays.

Ids are the first 128 bits of BLAKE3, so that nobody can make two contents with one id. In memory an id is two uint64
words, high word first, so that word order is byte order.
Memory: 20 bytes an id (24 from 2^32 ids on), twice that for a moment while the largest levels merge. Cost: a lookup is
a binary search in each of at most log2(N / first batch) sorted levels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from blake3 import blake3

from dagster_divorder.store.arrays import compact

ID_BYTES = 16
_PIECE = 1 << 18
"""Ids of the larger level that are merged at a time."""

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


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct ones of n ids.

    Id u occurs first at `first[u]`, int64 (distinct,), rising; ids[first][inverse] == ids, `inverse` int64 (n,).
    """

    first: np.ndarray
    inverse: np.ndarray


def distinct(ids: np.ndarray) -> Distinct:
    """Which of the uint64 (n, 2) ids are distinct, in the order of their first occurrence."""
    # Most often no two are equal, which the first words tell at a twentieth of the cost.
    high = np.sort(ids[:, 0])
    if not (high[1:] == high[:-1]).any():
        return Distinct(np.arange(len(ids)), np.arange(len(ids)))
    # A stable sort, so that of equal ids the first comes first.
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


class IdIndex:
    """Id -> row number, for rows added in batches.

    Sorted levels of geometrically growing size are merged as batches arrive (a log-structured merge), so adding N ids
    costs O(N log N) in all and no Python object is kept for an id.
    """

    def __init__(self) -> None:
        self.size = 0
        # Each level: high words (sorted), low words, rows.
        self._levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, ids: np.ndarray) -> np.ndarray:
        """Add uint64 (n, 2) ids, none of them there yet, as the next rows; return their row numbers, int64 (n,)."""
        rows = np.arange(self.size, self.size + len(ids), dtype=np.int64)
        self.size += len(ids)
        if len(ids):
            self._levels.append(_sort(ids[:, 0], ids[:, 1], compact(rows)))
        while len(self._levels) > 1 and len(self._levels[-2][0]) < 2 * len(self._levels[-1][0]):
            self._levels.append(_merge(self._levels.pop(), self._levels.pop()))
        return rows

    def first_halves(self, chosen: np.ndarray) -> np.ndarray:
        """The first half of the id of each chosen row, bool (size,), in no order; uint64 (chosen,)."""
        return np.concatenate(
            [np.empty(0, np.uint64), *(high[chosen[rows]] for high, _, rows in self._levels)]
        )

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Row number of each uint64 (n, 2) id, int64 (n,); -1 where it is not there."""
        # Looked up by rising id, neighbours share cache lines: twice as fast in a large index.
        by_id = np.argsort(ids[:, 0])
        high, low = ids[by_id, 0], ids[by_id, 1]
        found = np.full(len(ids), -1, dtype=np.int64)
        for level in self._levels:
            missing = np.flatnonzero(found < 0)
            if not len(missing):
                break
            found[missing] = _find(level, high[missing], low[missing])
        rows = np.empty_like(found)
        rows[by_id] = found
        return rows


def _merge(
    upper: tuple[np.ndarray, np.ndarray, np.ndarray], lower: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two levels as one, piece by piece, so that no more than both and the result is held."""
    cuts = np.arange(0, len(lower[0]), _PIECE)[1:]
    pieces = [
        pairwise([0, *at.tolist(), len(level[0])])
        for level, at in ((lower, cuts), (upper, np.searchsorted(upper[0], lower[0][cuts])))
    ]
    whole = tuple(
        np.empty(len(one) + len(other), np.result_type(one, other))
        for one, other in zip(lower, upper, strict=True)
    )
    end = 0
    for (low, high), (begin, until) in zip(*pieces, strict=True):
        first, end = end, end + high - low + until - begin
        part = _sort(
            *(np.concatenate([a[low:high], b[begin:until]]) for a, b in zip(lower, upper, strict=True))
        )
        for column, found in zip(whole, part, strict=True):
            column[first:end] = found
    return whole  # type: ignore[return-value]


def _sort(high: np.ndarray, low: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # numpy's stable sort is timsort: merging two sorted runs takes linear time.
    by = np.argsort(high, kind="stable")
    return high[by], low[by], rows[by]


def _find(level: tuple[np.ndarray, np.ndarray, np.ndarray], high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Row of each id in one level, -1 where it is not there."""
    level_high, level_low, rows = level
    found = np.full(len(high), -1, dtype=np.int64)
    pending = np.arange(len(high))
    at = np.searchsorted(level_high, high)
    # Ids that share a high word are neighbours, in no order; they are rare, so that this loop ends after one step but
    # in the adversarial case.
    while len(pending):
        inside = at < len(level_high)
        pending, at = pending[inside], at[inside]
        inside = level_high[at] == high[pending]
        pending, at = pending[inside], at[inside]
        hit = level_low[at] == low[pending]
        found[pending[hit]] = rows[at[hit]]
        pending, at = pending[~hit], at[~hit] + 1
    return found
