"""A multiset of records, whatever their order: their number, their bytes, and the sum of their hashes.

The sum of the 128-bit hashes of all records, modulo 2^128, can be computed part by part. Equal multisets have equal
sums; two different ones collide with probability 2^-128. (The sum is not a signature: records can be chosen to collide.
The ids and the manifest's sha256 are signatures.)
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
    total = 0
    for half in (ids[:, 0], ids[:, 1]):
        # 32 bits at a time, so that sums do not overflow.
        for part in (half >> np.uint64(32), half & np.uint64(0xFFFFFFFF)):
            total = (total << 32) + int(part.sum())
    return total % (1 << 128)
