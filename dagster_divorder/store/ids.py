"""128-bit content ids.

An id is the first 128 bits of a BLAKE3 hash, so nobody can make two contents with one id. In memory an id is two uint64
words, high word first; word order is byte order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
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
    numbers = np.arange(len(ids))
    # Ids are usually all distinct; the first words show that at a tenth of the cost.
    high = np.sort(ids[:, 0])
    if not (high[1:] == high[:-1]).any():
        return Distinct(numbers, numbers.copy())
    encoded = _binary(ids).dictionary_encode()
    inverse = _numbers(encoded.indices)
    first = np.empty(len(encoded.dictionary), np.int64)
    first[inverse[::-1]] = numbers[::-1]  # of positions written to one place the last one stays
    return Distinct(first, inverse)


def places(wanted: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Position of each wanted id, uint64 (n, 2), among distinct ids, uint64 (H, 2): int64 (n,), -1 if missing."""
    import pyarrow.compute as pc

    found = pc.index_in(_binary(wanted), value_set=_binary(ids))
    # `fill_null` imports pandas, as `to_numpy` does.
    missing = np.frombuffer(pc.is_null(found).cast("uint8").buffers()[1], np.uint8)[: len(found)]
    return np.where(missing, -1, _numbers(found))


def _numbers(found: pa.Array) -> np.ndarray:
    """Arrow's int32 (n,) as int64. Its own `to_numpy` imports pandas, for 0.4 s."""
    return np.frombuffer(found.buffers()[1], np.int32)[: len(found)].astype(np.int64)


def _binary(ids: np.ndarray) -> pa.Array:
    """uint64 (n, 2) as Arrow's values of 16 bytes, over the same memory."""
    data = np.ascontiguousarray(ids, np.uint64)
    return pa.Array.from_buffers(pa.binary(ID_BYTES), len(data), [None, pa.py_buffer(data)])


def hash_sum(ids: np.ndarray) -> int:
    """Sum of hashes modulo 2^128. ids: uint64 (n, 2), fewer than 2^32."""
    # 32 bits at a time, so that sums do not overflow.
    quarters = np.ascontiguousarray(ids, "<u8").view("<u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    low_of_high, high, low, high_of_low = map(int, quarters)
    return ((high << 96) + (low_of_high << 64) + (high_of_low << 32) + low) % (1 << 128)
