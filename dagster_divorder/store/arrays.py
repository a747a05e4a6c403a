"""Named NumPy arrays, or an Arrow table, as one immutable byte string, and back.

The formats are safetensors (a JSON header and raw little-endian buffers) and Arrow IPC: no pickle, and other tools read
them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from safetensors.numpy import load, save


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays to bytes; the same arrays give the same bytes."""
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """Bytes to arrays."""
    return load(data)


def pack_table(table: pa.Table) -> bytes:
    """An Arrow table to bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def unpack_table(data: bytes) -> pa.Table:
    """Bytes to an Arrow table."""
    return pa.ipc.open_file(data).read_all()
