"""A multiset of records, whatever their order: their number, their bytes, and the sum of their hashes.

The sum of the xxh3-128 of all records, modulo 2^128, can be computed block by block. It covers every record read, not
the stored ones, and is independent of ids: if two records with one id were taken for one, or a stored record were lost,
the sums of input and output would differ. Equal multisets have equal sums; two different ones collide with probability
2^-128. (The sum is not a signature: records can be chosen to collide. The ids and the manifest's sha256 are
signatures.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from dagster_divorder.store.ids import Content


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

    def __sub__(self, other: Multiset) -> Multiset:
        return Multiset(
            self.records - other.records, (self.hashes - other.hashes) % (1 << 128), self.bytes - other.bytes
        )


def of_lines(lines: Sequence[Content]) -> Multiset:
    """The multiset of lines without their ends."""
    return Multiset(len(lines), _sum(lines), sum(map(len, lines)) + len(lines))


def of_rows(rows: Sequence[Content]) -> Multiset:
    """The multiset of rows as `row_bytes` spells them."""
    return Multiset(len(rows), _sum(rows))


def _sum(values: Sequence[Content]) -> int:
    return sum(map(xxhash.xxh3_128_intdigest, values)) % (1 << 128)
