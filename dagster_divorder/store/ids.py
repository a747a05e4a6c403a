"""128-bit content ids, and an index of them in sorted arrays.

Ids are xxh3-128 digests. In memory an id is two uint64 words, high word first, so that word order is byte order.
Memory: 24 bytes an id. Cost: a lookup is a binary search in each of at most log2(N / first level) sorted levels.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xxhash

ID_BYTES = 16


def hash_all(values: Iterable[bytes]) -> bytes:
    """Concatenated 16-byte ids of byte strings."""
    digest = xxhash.xxh3_128_digest
    return b"".join([digest(value) for value in values])


def words(ids: bytes | memoryview) -> np.ndarray:
    """Concatenated 16-byte ids as uint64 (n, 2)."""
    return np.frombuffer(ids, dtype=">u8").astype(np.uint64).reshape(-1, 2)


def to_bytes(ids: np.ndarray) -> bytes:
    """uint64 (n, 2) as concatenated 16-byte ids."""
    return ids.astype(">u8").tobytes()


class IdIndex:
    """Id -> row number, for rows added in batches.

    Sorted levels of geometrically growing size are merged as batches arrive (a log-structured merge), so adding N ids
    costs O(N log N) in all and no Python object is kept for an id.
    """

    def __init__(self) -> None:
        self.size = 0
        self._levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, ids: np.ndarray) -> np.ndarray:
        """Add uint64 (n, 2) ids as the next rows; return their row numbers, int64 (n,)."""
        rows = np.arange(self.size, self.size + len(ids), dtype=np.int64)
        self.size += len(ids)
        if len(ids):
            self._levels.append(_sort(ids[:, 0], ids[:, 1], rows))
        while len(self._levels) > 1 and len(self._levels[-2][0]) < 2 * len(self._levels[-1][0]):
            upper = self._levels.pop()
            lower = self._levels.pop()
            self._levels.append(_sort(*(np.concatenate(pair) for pair in zip(lower, upper, strict=True))))
        return rows

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Row number of each uint64 (n, 2) id, int64 (n,); -1 where it is not there. Ids are added once."""
        found = np.full(len(ids), -1, dtype=np.int64)
        for high, low, rows in self._levels:
            missing = np.flatnonzero(found < 0)
            if not len(missing):
                break
            wanted_high, wanted_low = ids[missing, 0], ids[missing, 1]
            at = np.searchsorted(high, wanted_high)
            # Equal high words are next to each other; distinct ids that share one are rare, so this ends after one
            # step but for the adversarial case.
            while len(missing):
                inside = at < len(high)
                missing, at, wanted_high, wanted_low = (
                    part[inside] for part in (missing, at, wanted_high, wanted_low)
                )
                same_high = high[at] == wanted_high
                hit = same_high & (low[at] == wanted_low)
                found[missing[hit]] = rows[at[hit]]
                more = same_high & ~hit
                missing, at, wanted_high, wanted_low = (
                    part[more] for part in (missing, at + 1, wanted_high, wanted_low)
                )
        return found


def _sort(high: np.ndarray, low: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    by = np.lexsort((rows, low, high))
    return high[by], low[by], rows[by]
