"""The user's own vectors: a .npy file with a row a record, checked and read block by block.

Letters: n rows of a block, D dims. Rows of a file count from 0.
Memory: a block of BLOCK_BYTES, whatever the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import xxhash

from dagster_divorder.errors import InputError

BLOCK_BYTES = 32 << 20
FLOATS = (np.float16, np.float32, np.float64)
_SAVE = "numpy.save(path, vectors.astype('float32'))"


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFile:
    """A file of `rows` vectors of `dims` numbers."""

    path: Path
    rows: int
    dims: int
    dtype: np.dtype[Any]

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, its vectors and the next ones, (n, D)) for all rows, in order."""
        size = max(1, BLOCK_BYTES // (self.dims * self.dtype.itemsize))
        for first in range(0, self.rows, size):
            yield first, self.take(np.arange(first, min(self.rows, first + size)))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Vectors (n, D) of some rows, int64 (n,), in any order; may hold NaN and infinity."""
        # Mapped for each call, so that this process does not keep the pages.
        mapped = _map(self.path)
        if (*mapped.shape, mapped.dtype) != (self.rows, self.dims, self.dtype):
            raise InputError(f"{self.path} changed during reading; run again")
        consecutive = len(rows) and (np.diff(rows) == 1).all()
        picked = mapped[rows[0] : rows[-1] + 1] if consecutive else mapped[rows]
        return np.ascontiguousarray(picked, self.dtype.newbyteorder("="))


def open_vectors(path: Path | None) -> VectorFile:
    """The vectors in a file. Checks rows, dims, dtype and size.

    Raises:
        InputError: the file is missing, of another kind, truncated, or of another shape or dtype.
    """
    if path is None or not path.is_file():
        raise InputError(f"embedding.path: there is no file {str(path)!r}; give the path of a .npy file")
    if path.suffix.lower() != ".npy":
        raise InputError(
            f"embedding.path: {str(path)!r} ends in {path.suffix!r}; expected .npy, a row for each accepted record in "
            f"input order, saved by {_SAVE}"
        )
    vectors = _map(path)
    if vectors.ndim != 2 or vectors.dtype.type not in FLOATS or not vectors.size:
        raise InputError(
            f"{path} holds {vectors.dtype} of shape {vectors.shape}; expected float16, float32 or float64 of two "
            f"dimensions, a row a record: save it with {_SAVE}"
        )
    rows, dims = vectors.shape
    return VectorFile(path=path, rows=rows, dims=dims, dtype=vectors.dtype)


def row_hashes(vectors: np.ndarray) -> np.ndarray:
    """A hash of the bytes of each row of vectors (n, D), uint64 (n,)."""
    rows = np.ascontiguousarray(vectors).view(np.uint8)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, rows), np.uint64, len(rows))


def _map(path: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, "r")
    except (ValueError, KeyError, EOFError, OSError, SyntaxError, TokenError) as error:
        raise InputError(
            f"{path} is not a complete .npy file of numbers: {error or 'it is empty'}. It may be truncated, or hold "
            f"Python objects, which are never loaded; copy it again, or save the vectors with {_SAVE}"
        ) from error
