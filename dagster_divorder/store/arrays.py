"""Named NumPy arrays, or an Arrow table, as one immutable byte string, and back.

The formats are safetensors (a JSON header and raw little-endian buffers) and Arrow IPC: no pickle, and other tools read
them. A packed file's header holds a hash of each array, so that single arrays can be read and verified.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash
from safetensors.numpy import load, save

from dagster_divorder.core.arrow import number_array, text_array

_HEADER_LIMIT = 1 << 20


def pack(arrays: Mapping[str, np.ndarray], owner: str = "") -> bytes:
    """Arrays to bytes; the same arrays give the same bytes. owner: enters the hashes, and `unpack_some` checks it."""
    stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # One entry of metadata: safetensors writes several in no fixed order.
    hashes = {
        name: _hash(owner, name, array.dtype, array.shape, array.data)
        for name, array in sorted(stored.items())
    }
    return save(stored, metadata={"xxh3_128": orjson.dumps(hashes).decode()})


def _hash(owner: str, name: str, dtype: Any, shape: Sequence[int], data: Any) -> str:
    """xxh3-128, in hex, of an array's bytes, name, dtype, shape and owner."""
    description = repr((owner, name, np.dtype(dtype).str, tuple(shape)))
    return xxhash.xxh3_128_hexdigest(data, seed=xxhash.xxh3_64_intdigest(description.encode()))


def compact(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers of 0 or more as uint32 where they fit."""
    return numbers.astype(np.uint32, copy=False) if numbers.max(initial=0) < 1 << 32 else numbers


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """Bytes to arrays."""
    return load(data)


def unpack_some(file: IO[bytes] | pa.NativeFile, names: Sequence[str], owner: str = "") -> list[np.ndarray]:
    """The named arrays of an open packed file; reads only these and the header. Those of a file that Arrow has
    mapped into memory are views. Raises ValueError: the file is damaged, has no such array, or has another owner."""
    read = file.read_buffer if isinstance(file, pa.NativeFile) else file.read
    try:
        file_size = file.seek(0, os.SEEK_END)
        file.seek(0)
        size = int.from_bytes(file.read(8), "little")
        header = orjson.loads(file.read(size) if size <= _HEADER_LIMIT else b"")
        hashes = orjson.loads(header["__metadata__"]["xxh3_128"])
        arrays: list[np.ndarray] = []
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        if file_size != 8 + size + max(ends, default=0):
            raise ValueError(f"it has {file_size:,} bytes, not as many as its header says")
        for name in names:
            start, end = header[name]["data_offsets"]
            code, shape = header[name]["dtype"], header[name]["shape"]
            dtype = np.dtype(f"<{code[0].lower()}{int(code[1:]) // 8}")  # such as <f4 for F32
            file.seek(8 + size + start)
            data = read(end - start)
            if _hash(owner, name, dtype, shape, data) != hashes[name]:
                raise ValueError(f"the content of {name} has another hash than its header says")
            arrays.append(np.frombuffer(data, dtype).reshape(shape))
    except (orjson.JSONDecodeError, LookupError, TypeError, OSError, OverflowError) as error:
        raise ValueError(f"its header is unreadable: {error!r}") from error
    return arrays


def pack_parquet(table: pa.Table, compression: str = "snappy") -> bytes:
    """A table as a Parquet file."""
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression=compression)
    return sink.getvalue().to_pybytes()


def unpack_parquet(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """A Parquet file as a table. columns: None reads all."""
    import pyarrow.parquet as pq

    # Only on this thread: a process that ends right after the read aborts if Arrow has just started its own threads.
    file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
    return file.read(columns=columns, use_threads=False)


def pack_rows(rows: list[dict[str, Any]]) -> bytes:
    """Rows of plain values, by column name, as a Parquet file."""
    names = list(rows[0]) if rows else []
    return pack_parquet(pa.table({name: _column([row.get(name) for row in rows]) for name in names}))


def _column(values: list[Any]) -> pa.Array:
    """`pa.array` of plain values; it imports pandas (0.4 s), so text and numbers go another way."""
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return text_array(values).cast(pa.string())
    for number, dtype in ((float, np.float64), (int, np.int64)):
        if number in kinds and kinds <= {number, type(None)}:
            return number_array(values, dtype)
    return pa.array(values)
