"""A multiset of records, whatever their order: their number, their bytes, and the sum of their hashes modulo 2^128.

Two different multisets have equal sums with probability 2^-128. (The sum is not a signature: records can be chosen to
collide. The ids and the manifest's sha256 are signatures.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dagster_divorder.store.ids import Content, hash_all, words


@dataclass(frozen=True, slots=True)
class Multiset:
    """records: number of records; hashes: sum of their hashes; bytes: of lines with their ends, 0 for Parquet rows."""

    records: int = 0
    hashes: int = 0
    bytes: int = 0

    def __add__(self, other: Multiset) -> Multiset:
        return Multiset(
            self.records + other.records, (self.hashes + other.hashes) % (1 << 128), self.bytes + other.bytes
        )


def of_lines(lines: Sequence[Content]) -> Multiset:
    """The multiset of lines without their ends."""
    return Multiset(len(lines), hash_sum(words(hash_all(lines))), sum(map(len, lines)) + len(lines))


def of_rows(rows: Sequence[Content]) -> Multiset:
    """The multiset of rows as `row_bytes` spells them."""
    return Multiset(len(rows), hash_sum(words(hash_all(rows))))


def hash_sum(ids: np.ndarray) -> int:
    """Sum of hashes modulo 2^128. ids: uint64 (n, 2), fewer than 2^32."""
    # 32 bits at a time, so that sums do not overflow.
    quarters = np.ascontiguousarray(ids, "<u8").view("<u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    low_of_high, high, low, high_of_low = map(int, quarters)
    return ((high << 96) + (low_of_high << 64) + (high_of_low << 32) + low) % (1 << 128)
