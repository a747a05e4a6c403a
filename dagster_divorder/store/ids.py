"""128-bit content ids.

An id is the first 128 bits of a BLAKE3 hash, so nobody can make two contents with one id. In memory an id is two uint64
words, high word first; word order is byte order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

ID_BYTES = 16

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


def places(wanted: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Position of each wanted id, uint64 (n, 2), among distinct ids, uint64 (H, 2): int64 (n,), -1 if missing."""
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
