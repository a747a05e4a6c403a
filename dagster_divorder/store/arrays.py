"""Named NumPy arrays as one immutable byte string, and back.

The format is safetensors: a JSON header and raw little-endian buffers; no pickle, readable by other tools.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from safetensors.numpy import load, save


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays to bytes; the same arrays give the same bytes."""
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """Bytes to arrays."""
    return load(data)
