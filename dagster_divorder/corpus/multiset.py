"""Which records there are and how often, whatever their order: their number, their bytes, and the sum of their hashes.

The hashes are xxh3-128 of the records' bytes, summed modulo 2^128, so block by block and in any order. They are taken
of every record read, not of the stored ones, and have nothing in common with ids: were two records of one id taken for
one, or a stored one lost, the sums of input and output would differ. Equal multisets have equal sums; that two others
do by accident has a chance of 2^-128. (Who can choose records freely can make sums collide: this is no signature. The
ids and the manifest's sha256 are.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from dagster_divorder.store.ids import Content


@dataclass(frozen=True, slots=True)
class Multiset:
    """records: how many; hashes: the sum of their hashes; bytes: of lines with their ends, 0 for rows of Parquet."""

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
    """Of lines without their ends."""
    return Multiset(len(lines), _sum(lines), sum(map(len, lines)) + len(lines))


def of_rows(rows: Sequence[Content]) -> Multiset:
    """Of rows as `row_bytes` spells them."""
    return Multiset(len(rows), _sum(rows))


def _sum(values: Sequence[Content]) -> int:
    return sum(map(xxhash.xxh3_128_intdigest, values)) % (1 << 128)
