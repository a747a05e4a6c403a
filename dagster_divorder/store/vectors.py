"""Vectors that the user brings: a .npy or a Parquet file, checked, and read block by block.

Letters: n rows of a block, D dims. Rows of a file are counted from 0, as NumPy counts them.
A .npy file has a row a record. A Parquet file has a column of lists of floats, and one that says which document a row
belongs to: `doc_id` or `record_id` (hexadecimal, as `load_results().documents` shows them) or `row`, the number of a
record in input order.
Memory: a block of BLOCK_BYTES, whatever the size of the file.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash

from dagster_divorder.errors import InputError
from dagster_divorder.store.ids import ID_BYTES, words
from dagster_divorder.store.local import explain_os_error

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

KeyedBy = Literal["row", "doc_id", "record_id"]

BLOCK_BYTES = 32 << 20
FLOATS = (np.float16, np.float32, np.float64)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_SAVE = "numpy.save(path, vectors.astype('float32'))"


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of a file, `first` being the number of the first.

    `keys` says which documents they belong to: int64 (n,) numbers of records, or ids as uint64 (n, 2). `vectors` (n, D)
    has the file's own dtype; nothing is known yet of NaN and infinity.
    """

    first: int
    keys: np.ndarray
    vectors: np.ndarray


@dataclass(frozen=True, slots=True)
class NpyVectors:
    """A .npy file of shape (rows, dims). nan_as_zero: as in `open_vectors`."""

    path: Path
    rows: int
    dims: int
    dtype: np.dtype[Any]
    offset: int
    fortran: bool
    keyed_by: KeyedBy = "row"
    nan_as_zero: bool = False

    def blocks(self) -> Iterator[Block]:
        step = _rows_of_a_block(self.dims, self.dtype)
        for first in range(0, self.rows, step):
            keys = np.arange(first, min(self.rows, first + step), dtype=np.int64)
            yield Block(first, keys, self.take(keys))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Vectors (n, D) of some rows, int64 (n,)."""
        # Mapped anew each time, so that the pages read do not stay in this process.
        try:
            mapped = np.memmap(
                self.path, self.dtype, "r", self.offset, (self.rows, self.dims), "F" if self.fortran else "C"
            )
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path} changed while it was read ({error}); run again") from error
        near = len(rows) and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
        picked = mapped[rows[0] : rows[-1] + 1] if near else mapped[rows]
        native = np.ascontiguousarray(picked, self.dtype.newbyteorder("="))
        return _nan_as_zero(native) if self.nan_as_zero else native


@dataclass(frozen=True, slots=True)
class ParquetVectors:
    """A Parquet file with a column of vectors, and one of keys. nan_as_zero: as in `open_vectors`."""

    path: Path
    rows: int
    dims: int
    dtype: np.dtype[Any]
    column: str
    keyed_by: KeyedBy
    nan_as_zero: bool = False

    def blocks(self) -> Iterator[Block]:
        first = 0
        for batch in self._batches([self.keyed_by, self.column]):
            keys = _keys(self.path, self.keyed_by, batch.column(0), first)
            yield Block(first, keys, self._matrix(batch.column(1), first))
            first += len(batch)

    def only(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Some rows, int64 (n,), rising, and their vectors, block by block."""
        first = 0
        for batch in self._batches([self.column]):
            low, high = np.searchsorted(rows, [first, first + len(batch)])
            yield rows[low:high], self._matrix(batch.column(0), first)[rows[low:high] - first]
            first += len(batch)

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        read = 0
        with _open_parquet(self.path) as file:
            try:
                for batch in file.iter_batches(_rows_of_a_block(self.dims, self.dtype), columns=columns):
                    yield batch.select(columns)
                    read += len(batch)
            except (pa.ArrowException, OSError) as error:
                raise InputError(
                    f"{self.path} is damaged after row {read}: {error}; write or copy it again"
                ) from error

    def _matrix(self, column: pa.Array, first: int) -> np.ndarray:
        """Lists of floats as (n, D), over the memory of the column."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if column.null_count:
            raise _no_vector(self.path, self.column, first + _first(column.is_null()))
        lengths = pc.list_value_length(column)
        if len(column) and pc.any(pc.not_equal(lengths, self.dims)).as_py():
            at = _first(pc.not_equal(lengths, self.dims))
            raise InputError(
                f"{self.path}: the vector of row {first + at} has {lengths[at].as_py()} numbers, those before it "
                f"{self.dims}; expected one length for all: embed all documents with the same model"
            )
        values = column.flatten()
        if values.null_count:
            row = first + _first(values.is_null()) // self.dims
            raise InputError(
                f"{self.path}: the vector of row {row} holds a null; expected {self.dims} numbers: embed that "
                "document again"
            )
        assert isinstance(values, pa.FloatingPointArray)
        whole = np.frombuffer(values.buffers()[1], self.dtype)
        matrix = whole[values.offset : values.offset + len(values)].reshape(len(column), self.dims)
        return _nan_as_zero(matrix) if self.nan_as_zero else matrix


def _nan_as_zero(vectors: np.ndarray) -> np.ndarray:
    """The same (n, D), rows that hold NaN all zero."""
    broken = np.isnan(vectors).any(axis=1)
    return np.where(broken[:, np.newaxis], vectors.dtype.type(0), vectors) if broken.any() else vectors


VectorFile = NpyVectors | ParquetVectors


class Spool:
    """Rows on their way from a file into fragments, in the order of which they are taken out again.

    Of a Parquet file, which is read from its beginning to its end, they wait in a temporary file in the folder
    `scratch`; of a .npy file any row can be had at any time, and nothing is kept. A context manager.
    """

    def __init__(self, file: VectorFile, scratch: Path) -> None:
        self._file, self._scratch = file, scratch
        self._rows = np.empty(0, np.int64)
        self._parts: list[np.ndarray] = []
        streamed = isinstance(file, ParquetVectors)
        self._kept = tempfile.TemporaryFile(dir=scratch) if streamed else None  # noqa: SIM115

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept:
            self._kept.close()

    def keep(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Keep some rows, int64 (n,), rising and beyond those before, with their vectors (n, D)."""
        if not self._kept:
            return
        try:
            self._kept.write(vectors.tobytes())
        except OSError as error:
            size = self._file.rows * self._file.dims * self._file.dtype.itemsize
            raise explain_os_error(error, self._scratch, size, "a copy of new vectors") from error
        self._parts.append(rows)

    def ready(self, rows: np.ndarray) -> None:
        """See to it that some rows, int64 (n,), rising, can be taken, if need be by reading the file again."""
        if not self._kept:
            return
        self._rows = np.concatenate([np.empty(0, np.int64), *self._parts])
        if not np.isin(rows, self._rows, assume_unique=True).all():
            assert isinstance(self._file, ParquetVectors)
            self._kept.seek(0)
            self._kept.truncate()
            self._parts = []
            for some, vectors in self._file.only(rows):
                self.keep(some, vectors)
            self._rows = rows
        self._kept.flush()

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Vectors (n, D) of some of those rows, int64 (n,), in any order."""
        if isinstance(self._file, NpyVectors):
            return self._file.take(rows)
        if not len(rows):
            return np.empty((0, self._file.dims), self._file.dtype)
        shape = (len(self._rows), self._file.dims)
        mapped = np.memmap(self._kept, self._file.dtype, "r", shape=shape)  # type: ignore[call-overload]
        return np.array(mapped[np.searchsorted(self._rows, rows)])


def open_vectors(path: Path, *, nan_as_zero: bool = False) -> VectorFile:
    """The vectors in a file, known by its name's ending; rows, dims, dtype and size are checked.

    nan_as_zero: rows that hold NaN are read as vectors of zeros.

    Raises:
        InputError: the file is missing, of another kind, cut short, or of another shape or dtype. It says which, what
            was expected and what to do.
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
    file = _open_npy_file(path) if suffix == ".npy" else _open_parquet_file(path)
    if file.rows < 1 or file.dims < 1:
        raise InputError(
            f"{path} holds {file.rows} vectors of {file.dims} numbers; expected at least one of each: write it again"
        )
    return replace(file, nan_as_zero=nan_as_zero)


def row_hashes(vectors: np.ndarray) -> np.ndarray:
    """uint64 (n,): a hash of the bytes of each row of (n, D); never 0."""
    size = vectors.shape[1] * vectors.itemsize
    data = np.ascontiguousarray(vectors).data.cast("B") if len(vectors) else b""
    digest = xxhash.xxh3_64_intdigest
    hashes = np.fromiter(
        (digest(data[at : at + size]) for at in range(0, len(data), size)), np.uint64, len(vectors)
    )
    return np.maximum(hashes, np.uint64(1))


def _rows_of_a_block(dims: int, dtype: np.dtype[Any]) -> int:
    return max(1, BLOCK_BYTES // (dims * dtype.itemsize))


def _open_npy_file(path: Path) -> NpyVectors:
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            shape, fortran, dtype = _HEADERS[version](file)
            offset = file.tell()
            size = os.fstat(file.fileno()).st_size - offset
    except (ValueError, KeyError, EOFError, OSError, SyntaxError, TokenError) as error:
        raise InputError(
            f"{path} is no .npy file: {error or 'it is empty'}; save the vectors with {_SAVE}"
        ) from error
    if dtype.hasobject:
        raise InputError(
            f"{path} holds pickled Python objects, which are never loaded; expected a matrix of floats: save "
            "numpy.stack(vectors).astype('float32')"
        )
    if len(shape) != 2:
        raise InputError(
            f"{path} has the shape {shape}; expected two dimensions, a row a record: save it with "
            "vectors.reshape(records, -1)"
        )
    if dtype.type not in FLOATS:
        raise InputError(f"{path} holds {dtype}; expected float16, float32 or float64: save it with {_SAVE}")
    rows, dims = shape
    if size < rows * dims * dtype.itemsize:
        there = size // (dims * dtype.itemsize)
        raise InputError(
            f"{path} is cut short: it holds {there:,} rows of the {rows:,} that its header promises; copy or save it "
            "again"
        )
    return NpyVectors(path, rows, dims, dtype, offset, fortran)


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Read through a buffer: else a whole row group of vectors, often all of them, is in memory.
        file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}; write or copy it again") from error
    with file:
        yield file


def _open_parquet_file(path: Path) -> ParquetVectors:
    import pyarrow as pa

    with _open_parquet(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        found = [field for field in schema if _is_vector(field.type)]
        named = [field for field in found if field.name == "vector"]
        if len(found) != 1 and len(named) != 1:
            raise InputError(
                f"{path} has {len(found)} columns of lists of floats ({columns}); expected one, or one of them named "
                "'vector': write it with list<float> or fixed_size_list<float>"
            )
        field = (named or found)[0]
        keyed = [name for name in ("record_id", "doc_id", "row") if name in schema.names]
        if not keyed:
            raise InputError(
                f"{path} has the columns {columns}; expected one that says whose vector a row is: doc_id or record_id, "
                "as load_results(store).documents shows them, or row, the number of a record in input order from 0"
            )
        key, kind = keyed[0], schema.field(keyed[0]).type
        fits = pa.types.is_integer(kind) if key == "row" else _is_text(kind)
        if not fits:
            expected = "whole numbers" if key == "row" else "strings of 32 hexadecimal digits"
            raise InputError(f"{path}: the column {key!r} is of type {kind}; expected {expected}")
        dims = field.type.list_size if pa.types.is_fixed_size_list(field.type) else 0
        if rows and not dims:
            one = next(file.iter_batches(1, columns=[field.name])).column(0)[0].as_py()
            if one is None:
                raise _no_vector(path, field.name, 0)
            dims = len(one)
    dtype = np.dtype({16: np.float16, 32: np.float32, 64: np.float64}[field.type.value_type.bit_width])
    return ParquetVectors(path, rows, dims, dtype, field.name, key)  # type: ignore[arg-type]


def _no_vector(path: Path, column: str, row: int) -> InputError:
    return InputError(
        f"{path}: {column!r} is null in row {row}; expected a vector: embed that document, or leave out the row if the "
        "corpus no longer holds it"
    )


def _is_vector(kind: pa.DataType) -> bool:
    import pyarrow as pa

    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in lists) and pa.types.is_floating(kind.value_type)


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(
        is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def _keys(path: Path, keyed_by: KeyedBy, column: pa.Array, first: int) -> np.ndarray:
    """Numbers of records, int64 (n,), or ids, uint64 (n, 2)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        raise InputError(
            f"{path}: {keyed_by!r} is null in row {first + _first(column.is_null())}; expected to be told whose vector "
            "that is: fill it in, or leave out the row"
        )
    if keyed_by == "row":
        numbers = column.cast(pa.int64())
        return np.frombuffer(numbers.buffers()[1], np.int64)[numbers.offset : numbers.offset + len(numbers)]
    text = column.cast(pa.large_string())
    sound = pc.match_substring_regex(text, "^[0-9a-fA-F]{32}$")
    if len(column) and not pc.all(sound).as_py():
        at = _first(pc.invert(sound))
        raise InputError(
            f"{path}: {keyed_by!r} is {text[at].as_py()!r} in row {first + at}; expected 32 hexadecimal digits, as "
            "load_results(store).documents shows them"
        )
    start = 2 * ID_BYTES * text.offset
    digits = text.buffers()[2].to_pybytes()[start : start + 2 * ID_BYTES * len(text)] if len(text) else b""
    return words(bytes.fromhex(digits.decode()))


def _first(flags: pa.BooleanArray) -> int:
    """Number of the first true one."""
    return int(flags.index(True).as_py())
