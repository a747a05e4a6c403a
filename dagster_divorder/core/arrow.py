"""Plain Python values and NumPy arrays as Arrow. Unlike `pa.array`, `pa.scalar` and `to_numpy`, nothing here imports
pandas (0.3 s).

Letters: n values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a string type."""
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a type of numbers."""
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a list type."""
    import pyarrow.types as types

    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def binary_array(values: Sequence[bytes]) -> pa.Array:
    """Byte strings as Arrow large_binary (n,)."""
    return _binary_array(values, None)


def text_array(values: Sequence[str | None], errors: str = "strict") -> pa.Array:
    """Texts as Arrow large_string (n,). errors: what to do with lone surrogates, as in `str.encode`."""
    import pyarrow as pa

    encoded = [(value or "").encode(errors=errors) for value in values]
    return _binary_array(encoded, _validity(values)).cast(pa.large_string())


def number_array(values: Sequence[float | None], dtype: type[np.int64 | np.uint64 | np.float64]) -> pa.Array:
    """Numbers as Arrow int64, uint64 or float64 (n,)."""
    import pyarrow as pa

    numbers = np.fromiter((0 if value is None else value for value in values), dtype, len(values))
    kind = pa.from_numpy_dtype(dtype)
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(numbers)])


def plain_array(values: NDArray[Any]) -> pa.Array:
    """Whole or real numbers (n,) as Arrow; contiguous memory is shared. `pa.array` imports pandas for them."""
    import pyarrow as pa

    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    """Arrow's bitmap of the values that are not None; None if all are present."""
    import pyarrow as pa

    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def _binary_array(values: Sequence[bytes], validity: pa.Buffer | None) -> pa.Array:
    import pyarrow as pa

    ends = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)
