"""The user's own vectors: a .npy or Parquet file, checked and read block by block.

Letters: n rows of a block, D dims. Rows of a file count from 0.
A .npy file has a row a record. A Parquet file has a column of lists of floats and a key column (`corpus.keyed`).
Memory: a block of BLOCK_BYTES, whatever the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash

from dagster_divorder.core.arrow import is_list
from dagster_divorder.corpus.keyed import (
    KeyedBy,
    first_true,
    key_column,
    key_values,
    read_columns,
    read_schema,
)
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 32 << 20
FLOATS = (np.float16, np.float32, np.float64)
_SAVE = "numpy.save(path, vectors.astype('float32'))"


class Block(NamedTuple):
    """Consecutive rows of a file from row `first` on.

    keys: of the rows' documents, int64 (n,) numbers of records, or uint64 (n, 2) ids (for own ids, hashes of their
    text). vectors: (n, D) in the file's dtype; may hold NaN and infinity.
    """

    first: int
    keys: np.ndarray
    vectors: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFile:
    """A file of `rows` vectors of `dims` numbers. column, key: of a Parquet file, its columns of vectors and of keys;
    "" for .npy."""

    path: Path
    rows: int
    dims: int
    dtype: np.dtype[Any]
    keyed_by: KeyedBy = "row"
    column: str = ""
    key: str = ""

    @property
    def _rows_of_a_block(self) -> int:
        return max(1, BLOCK_BYTES // (self.dims * self.dtype.itemsize))

    def blocks(self) -> Iterator[Block]:
        """All rows, from first to last."""
        size = self._rows_of_a_block
        if not self.column:
            for first in range(0, self.rows, size):
                rows = np.arange(first, min(self.rows, first + size), dtype=np.int64)
                yield Block(first, rows, self.take(rows))
            return
        for first, (column, vectors) in read_columns(self.path, (self.key, self.column), size):
            keys = key_values(self.path, self.keyed_by, self.key, column, first)
            yield Block(first, keys, self._matrix(vectors, first))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Vectors (n, D) of some rows of .npy, int64 (n,), in any order."""
        # Mapped for each call, so that this process does not keep the pages.
        mapped = _map(self.path)
        if (*mapped.shape, mapped.dtype) != (self.rows, self.dims, self.dtype):
            raise InputError(f"{self.path} changed during reading; run again")
        consecutive = len(rows) and (np.diff(rows) == 1).all()
        picked = mapped[rows[0] : rows[-1] + 1] if consecutive else mapped[rows]
        return np.ascontiguousarray(picked, self.dtype.newbyteorder("="))

    def copy(self, rows: np.ndarray, path: Path) -> VectorFile:
        """Copies rows of Parquet, int64 (n,), rising, to a .npy file at `path`, which `take` can read in any order."""
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (len(rows), self.dims)}
        # Written, not mapped: a full disk is then an error and does not kill the process.
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for first, (column,) in read_columns(self.path, [self.column], self._rows_of_a_block, rows):
                begin, end = np.searchsorted(rows, [first, first + len(column)])
                file.write(self._matrix(column, first)[rows[begin:end] - first].tobytes())
        return VectorFile(path=path, rows=len(rows), dims=self.dims, dtype=self.dtype)

    def _matrix(self, column: pa.Array, first: int) -> np.ndarray:
        """Lists of floats as (n, D), a view of the column's memory."""
        import pyarrow.compute as pc

        lengths = pc.list_value_length(column)
        if (at := first_true(pc.not_equal(lengths.fill_null(-1), self.dims))) >= 0:
            has = "is null" if lengths[at].as_py() is None else f"has {lengths[at]} numbers"
            raise InputError(
                f"{self.path}: the vector of row {first + at} in {self.column!r} {has}; expected {self.dims} numbers, "
                "as in earlier rows: embed all documents with the same model, or leave out rows of no document"
            )
        values = column.flatten()
        if values.null_count and (at := first_true(values.is_null())) >= 0:
            raise InputError(
                f"{self.path}: the vector of row {first + at // self.dims} holds a null; expected {self.dims} "
                f"numbers: embed this document again"
            )
        return values.to_numpy().reshape(-1, self.dims)


def open_vectors(path: Path, *, id_field: str | None = None) -> VectorFile:
    """The vectors in a file; its suffix tells the kind. Checks rows, dims, dtype and size.

    id_field: the field of the records' own ids. Raises InputError: the file is missing, of another kind, truncated, or
    of another shape or dtype.
    """
    if not path.is_file():
        raise InputError(
            f"embedding.path: there is no file {str(path)!r}; give the path of a .npy or Parquet file"
        )
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".parquet"):
        raise InputError(
            f"embedding.path: {str(path)!r} ends in {suffix!r}; expected .npy, saved by {_SAVE}, or .parquet"
        )
    file = _open_npy(path) if suffix == ".npy" else _open_parquet(path, id_field)
    if file.rows < 1 or file.dims < 1:
        raise InputError(
            f"{path} holds {file.rows} vectors of {file.dims} numbers; expected at least one of each: write it again"
        )
    return file


def row_hashes(vectors: np.ndarray) -> np.ndarray:
    """A hash of the bytes of each row of vectors (n, D), uint64 (n,), never 0."""
    rows = np.ascontiguousarray(vectors).view(np.uint8)
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, rows), np.uint64, len(rows))
    return np.maximum(hashes, np.uint64(1))


def _map(path: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, "r")
    except (ValueError, KeyError, EOFError, OSError, SyntaxError, TokenError) as error:
        raise InputError(
            f"{path} is not a complete .npy file of numbers: {error or 'it is empty'}. It may be truncated, or hold "
            f"Python objects, which are never loaded; copy it again, or save the vectors with {_SAVE}"
        ) from error


def _open_npy(path: Path) -> VectorFile:
    vectors = _map(path)
    if vectors.ndim != 2:
        raise InputError(
            f"{path} has the shape {vectors.shape}; expected two dimensions, a row a record: save it with "
            "vectors.reshape(records, -1)"
        )
    if vectors.dtype.type not in FLOATS:
        raise InputError(
            f"{path} holds {vectors.dtype}; expected float16, float32 or float64: save it with {_SAVE}"
        )
    rows, dims = vectors.shape
    return VectorFile(path=path, rows=rows, dims=dims, dtype=vectors.dtype)


def _open_parquet(path: Path, id_field: str | None) -> VectorFile:
    import pyarrow as pa

    schema, rows = read_schema(path)
    columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
    lists = [field for field in schema if is_list(field.type) and pa.types.is_floating(field.type.value_type)]
    named = [field for field in lists if field.name == "vector"]
    if len(lists) != 1 and len(named) != 1:
        raise InputError(
            f"{path} has {len(lists)} columns of lists of floats ({columns}); expected one, or one of them named "
            "'vector': write it with list<float> or fixed_size_list<float>"
        )
    field = (named or lists)[0]
    keyed_by, key = key_column(path, schema, id_field)
    dims = field.type.list_size if pa.types.is_fixed_size_list(field.type) else 0
    if rows and not dims:
        vector = next(read_columns(path, [field.name], 1))[1][0][0].as_py()
        dims = 1 if vector is None else len(vector)  # `_matrix` refuses nulls
    dtype = np.dtype(field.type.value_type.to_pandas_dtype())
    return VectorFile(
        path=path, rows=rows, dims=dims, dtype=dtype, keyed_by=keyed_by, column=field.name, key=key
    )
