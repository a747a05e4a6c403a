"""The records of one input file, block by block, in order.

A record is the raw bytes read: a JSONL line without its terminator (LF or CRLF) or a leading BOM, or a Parquet row with
all its columns. Blank lines are not records. A last line without terminator that begins an object but is not valid JSON
is still being written: it is left for the next run. (In a compressed file and at a URL it is refused: nobody appends to
these in place.)

Guarantee: the same records whatever the block sizes, in time linear in the file. A line beyond the limit of a record is
never whole in memory. Memory: a few times BLOCK_BYTES and the longest record. Known weakness: a Parquet row is decoded
before its size is known, and a whole page of a column is in memory. Most writers put some 1,024 rows of any size into a
page.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import orjson
from blake3 import blake3

from dagster_divorder.core.fields import columns_of
from dagster_divorder.corpus.compression import CODECS, decompressed, suffix_for
from dagster_divorder.corpus.json_records import parse
from dagster_divorder.corpus.looks import CSV_REMEDY, LZ4_REMEDY, looks_like
from dagster_divorder.corpus.parquet_rows import row_as_json, row_bytes
from dagster_divorder.errors import InputError
from dagster_divorder.settings import MAX_RECORD_BYTES
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.ids import ID_BYTES, hash_all, words
from dagster_divorder.store.sources import Source, open_source

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["jsonl", "parquet"]

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
ARROW_SUFFIX = ".arrow"
PARQUET_SUFFIXES = (".parquet", ARROW_SUFFIX)
"""Files of rows. Arrow's, of streams or files, are read as Parquet is."""
ARROW_MAGIC = b"ARROW1"
BLOCK_BYTES = 8 << 20
BLOCK_ROWS = 4096
BUFFER_BYTES = 1 << 20
"""Bytes read from each column of a Parquet file at a time."""
SHOWN_BYTES = 1024
"""Bytes of a too long record that its reject keeps."""
_BOM = b"\xef\xbb\xbf"


class LongRecord(NamedTuple):
    """A record of more bytes than MAX_RECORD_BYTES, of a line without its LF alone: its bytes, its id of 16
    bytes, and its first bytes."""

    size: int
    id: bytes
    begins: bytes


class Unfinished(NamedTuple):
    """A last line without newline that is incomplete JSON: its offset and first bytes."""

    byte: int
    begins: bytes


@dataclass(frozen=True, slots=True)
class Block:
    """n consecutive lines or rows of one file.

    content: lines without terminators (a blank line and a long record are empty), or Parquet rows. starts: offset of
    each line, or number of each row, in the file, int64 (n,), from 0; of a compressed file, of its content. ids: uint64
    (n, 2). sizes: bytes, int64 (n,). blank: bool (n,). long: records beyond the limit, by place. unfinished: the line
    that follows the block's last one and ends the file.
    """

    content: list[bytes] | pa.RecordBatch
    starts: np.ndarray
    ids: np.ndarray
    sizes: np.ndarray
    blank: np.ndarray
    long: dict[int, LongRecord] = field(default_factory=dict)
    unfinished: Unfinished | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def lines(self, low: int, high: int) -> Block:
        """Lines or rows [low, high), without what follows the block."""
        if (low, high) == (0, len(self)):
            return self
        long = {place - low: record for place, record in self.long.items() if low <= place < high}
        inside = slice(low, high)
        content, starts, ids = self.content[inside], self.starts[inside], self.ids[inside]
        return Block(content, starts, ids, self.sizes[inside], self.blank[inside], long)


def kind_of(path: Source) -> Kind:
    """Kind of a file, from its name.

    Raises:
        InputError: the name has neither ending.
    """
    if kind := kind_by_name(path):
        return kind
    remedies = {".csv": f"; {CSV_REMEDY}", ".tsv": f"; {CSV_REMEDY}"}
    remedy = remedies.get(path.suffix.lower(), "")
    raise InputError(
        f"{path} is neither JSONL nor Parquet by its name; expected one of "
        f"{', '.join((*JSONL_SUFFIXES, *PARQUET_SUFFIXES))} (JSONL also with {', '.join(CODECS)}){remedy}"
    )


def kind_by_name(path: Source) -> Kind | None:
    """Kind of a file, from its name; None if it is neither JSONL nor Parquet.

    Raises:
        InputError: the file is JSONL compressed by lz4.
    """
    name = path.name.lower()
    if name.endswith(tuple(f"{suffix}.lz4" for suffix in JSONL_SUFFIXES)):
        raise InputError(f"{path} is compressed by lz4, which is not read; {LZ4_REMEDY}")
    if name.endswith(PARQUET_SUFFIXES):
        return "parquet"
    bare = name if is_plain(path) else name.removesuffix(path.suffix.lower())
    return "jsonl" if bare.endswith(JSONL_SUFFIXES) else None


def is_plain(path: Source) -> bool:
    """Whether a JSONL file is uncompressed, by its name; such a file may grow in place."""
    return path.suffix.lower() not in CODECS


def read_lines(
    path: Source, limit: int = MAX_RECORD_BYTES, *, first: int = 0, block_bytes: int | None = None
) -> Iterator[Block]:
    """Lines of a JSONL file in blocks of about `block_bytes`, by default BLOCK_BYTES.

    Args:
        limit: most bytes of a record that is kept in memory.
        first: offset of a line of a plain file, where reading starts.

    Raises:
        InputError: the file cannot be read, its compression differs from its name's, or its compressed data is damaged
            or truncated.
    """
    plain, at, number = is_plain(path), first, 0
    with readable(path, lambda: f"byte {at:,}" if first else f"line {number:,}"), open_source(path) as raw:
        _check_codec(path, raw)
        raw.seek(first)
        source = io.BufferedReader(raw, BUFFER_BYTES) if plain else decompressed(raw, path.suffix)
        while data := source.read(block_bytes or BLOCK_BYTES):
            data += source.readline(limit + 1)
            *lines, last = data.split(b"\n")
            long = {place: _long_record(line) for place, line in enumerate(lines) if len(line) > limit}
            unfinished = None
            if len(last) > limit:
                lines.append(last)
                long[len(lines) - 1] = record = _long_record(last, source)
                size = len(data) + record.size - len(last) + 1
            else:
                size = len(data)
                # Nobody appends to a compressed file or a file at a URL in place, so its last line is complete.
                if (
                    plain
                    and isinstance(path, Path)
                    and _is_incomplete(last if at or lines else last.removeprefix(_BOM))
                ):
                    unfinished = Unfinished(at + size - len(last), last[:SHOWN_BYTES])
                elif last:
                    lines.append(last)
            yield (block := _line_block(lines, at, long, unfinished))
            at, number = at + size, number + len(block)


def _is_incomplete(line: bytes) -> bool:
    """Whether a last line may still become a record. A line that does not begin an object never does."""
    line = line.removesuffix(b"\r")
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        parse(line)
    except orjson.JSONDecodeError:
        return b"\r" not in line
    return False


def _long_record(line: bytes, source: IO[bytes] | None = None) -> LongRecord:
    """A line beyond the limit. source: holds its rest."""
    size, begins, digest = len(line), line[:SHOWN_BYTES], blake3(line)
    while source and (piece := source.readline(BUFFER_BYTES)):
        bare = piece.removesuffix(b"\n")
        size += len(bare)
        begins += bare[: SHOWN_BYTES - len(begins)]
        digest.update(bare)
        if bare != piece:
            break
    return LongRecord(size, digest.digest(ID_BYTES), begins)


def _line_block(
    lines: list[bytes], at: int, long: dict[int, LongRecord], unfinished: Unfinished | None
) -> Block:
    """Lines without LF as a block. at: offset of the first one."""
    ends = np.fromiter(map(len, lines), np.int64, len(lines)) + 1
    starts = at + np.cumsum(ends) - ends
    lines = [line.removesuffix(b"\r") for line in lines]
    if lines and not at:
        lines[0] = lines[0].removeprefix(_BOM)
    for place in long:
        lines[place] = b""
    ids = words(hash_all(lines))
    sizes = np.fromiter(map(len, lines), np.int64, len(lines))
    blank = np.fromiter((not line or line.isspace() for line in lines), bool, len(lines))
    for place, record in long.items():
        ids[place], sizes[place], blank[place] = words(record.id), record.size, False
    return Block(lines, starts, ids, sizes, blank, long, unfinished)


@contextlib.contextmanager
def readable(path: Source, read: Callable[[], str] = lambda: "line 0") -> Iterator[None]:
    """Turns an OSError into an InputError. read: what was read last."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} vanished during reading; run again") from None
    except OSError as error:
        remedy = "copy it again, or leave it out of input.paths"
        if isinstance(error, PermissionError):
            remedy = "make it readable for this user, or leave it out of input.paths"
        elif not is_plain(path):
            remedy = "copy or compress a damaged or truncated compressed file again"
        raise InputError(
            f"{path} cannot be read after {read()}: {error.strerror or error}; {remedy}"
        ) from error


def _looks(path: Source) -> str:
    """What the first bytes of a file look like, "" if unknown."""
    with readable(path), open_source(path) as file:
        return looks_like(file.read(SHOWN_BYTES))


def _check_codec(path: Source, file: IO[bytes]) -> None:
    actual, named = suffix_for(file), path.suffix.lower()
    if actual and actual != named:
        says = f"{CODECS[named].name} data" if named in CODECS else "plain JSONL"
        bare = path.name if named not in CODECS else path.name[: -len(named)]
        raise InputError(
            f"{path} holds {CODECS[actual].name} data, and its name says {says}; rename it to {bare}{actual}"
        )
    if named in CODECS and not actual:
        file.seek(0)
        begins = file.read(SHOWN_BYTES)
        plain = begins.removeprefix(_BOM).lstrip().startswith(b'{"')
        looks = f"plain JSONL; rename it to {path.name[: -len(named)]}" if plain else looks_like(begins)
        if looks:
            raise InputError(
                f"{path} does not hold {CODECS[named].name} data, although its name says so: it is {looks}"
            )


def read_schema(path: Source, expected: pa.Schema | None, known: bytes = b"") -> pa.Schema:
    """Columns of a Parquet file. known: these as Arrow serialises them, if the file is unchanged.

    Raises:
        InputError: the file is not Parquet, or its columns differ from `expected`, the first file's.
    """
    import pyarrow as pa

    if known:
        return _checked(path, pa.ipc.read_schema(pa.py_buffer(known)), expected)
    with _open_rows(path, expected) as (_, schema):
        return schema


def _checked(path: Source, schema: pa.Schema, expected: pa.Schema | None) -> pa.Schema:
    if expected is not None and not schema.equals(expected):
        raise InputError(
            f"{path} has other columns than earlier files: {_describe(schema)}; expected {_describe(expected)}; "
            f"rewrite it with this schema, or give it its own [[input]] block"
        )
    return schema


def read_rows(
    path: Source, schema: pa.Schema | None, limit: int = MAX_RECORD_BYTES, *, first: int = 0
) -> Iterator[Block]:
    """Rows of a Parquet file from row `first` on, in blocks of at most `BLOCK_ROWS`. A file without rows gives an empty
    block.

    Raises:
        InputError: as `read_batches` does.
    """
    at = 0
    for rows in read_batches(path, schema):
        low, at = max(0, first - at), at + rows.num_rows
        if low < rows.num_rows or not rows.num_rows:
            kept = rows.slice(low)
            yield _row_block(kept, at - kept.num_rows, limit)


def _row_block(rows: pa.RecordBatch, first: int, limit: int) -> Block:
    raw = row_bytes(rows)
    ids = words(hash_all(raw))
    long = {}
    for place in range(rows.num_rows) if rows.nbytes > limit else ():
        if (size := row_at(rows, place).nbytes) > limit:
            begins = row_as_json(row_at(rows, place))[:SHOWN_BYTES]
            long[place] = LongRecord(size, ids[place].astype(">u8").tobytes(), begins)
    sizes = np.fromiter(map(len, raw), np.int64, len(raw))
    return Block(rows, first + np.arange(len(raw)), ids, sizes, np.zeros(len(raw), bool), long)


def row_at(rows: pa.RecordBatch, place: int) -> pa.RecordBatch:
    """One row, copied: a slice of a nested column would keep all of it."""
    return rows.take(row_array(np.array([place])))


def read_batches(
    path: Source, schema: pa.Schema | None, fields: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of a Parquet file, with all columns or the columns of some `fields`. A file without rows gives an empty
    batch, because its columns may be wrong too.

    Raises:
        InputError: the file is not Parquet, or its columns differ from `schema`, the first file's.
    """
    import pyarrow as pa

    with _open_rows(path, schema) as (batches, wanted):
        if fields is not None:
            names = columns_of(fields, wanted.names)
            wanted = pa.schema([field for field in wanted if field.name in names])
        read = 0
        try:
            for rows in batches(None if fields is None else wanted.names):
                if fields is not None:
                    # Arrow also takes a column called `a.b` for the field `b` of a column `a`.
                    rows = rows.select([at for at, name in enumerate(rows.schema.names) if name in names])
                # Casts only columns that differ: Arrow miscasts lists of nulls, for example.
                columns = [
                    column if column.type.equals(field.type) else column.cast(field.type)
                    for column, field in zip(rows.columns, wanted, strict=True)
                ]
                rows = pa.RecordBatch.from_arrays(columns, schema=wanted)
                rows.validate()
                yield rows
                read += rows.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{path} is damaged after row {read:,}, or Arrow cannot read one of its types: {error}; "
                f"copy it again, or rewrite it with other types"
            ) from error
        if not read:
            empty = [pa.nulls(0, field.type) for field in wanted]
            yield pa.RecordBatch.from_arrays(empty, schema=wanted)


def _rows_at_once(file: Any) -> int:
    """Number of rows of about BLOCK_BYTES in the row group with the largest rows, at most BLOCK_ROWS. file: of
    `pq.ParquetFile`."""
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    largest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, largest)))


Batches: TypeAlias = "Callable[[list[str] | None], Iterator[pa.RecordBatch]]"
"""Gives the rows of an open file, with all columns or some; more than some bytes in memory at a time only if a row has
them."""


@contextlib.contextmanager
def _open_rows(path: Source, expected: pa.Schema | None) -> Iterator[tuple[Batches, pa.Schema]]:
    """The rows and the columns of a Parquet or Arrow file."""
    import pyarrow as pa

    is_arrow = path.name.lower().endswith(ARROW_SUFFIX)
    with contextlib.ExitStack() as opened:
        try:
            source = path if isinstance(path, Path) else opened.enter_context(open_source(path))
            batches, schema = (_arrow_batches if is_arrow else _parquet_batches)(source, opened)
            # Arrow cannot take rows of string views; in a Parquet file they are the same as strings.
            schema = pa.schema([_without_view(field) for field in schema], metadata=schema.metadata)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            looks, kind = _looks(path), "Arrow" if is_arrow else "Parquet"
            raise InputError(
                f"{path} cannot be read as {kind}: {error}{f'; it is {looks}' if looks else ''}"
            ) from error
        yield batches, _checked(path, schema, expected)


def _parquet_batches(source: Any, opened: contextlib.ExitStack) -> tuple[Batches, pa.Schema]:
    import pyarrow.parquet as pq

    # Through a buffer: a row group may be the whole file.
    file = opened.enter_context(pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False))
    return lambda names: file.iter_batches(_rows_at_once(file), columns=names), file.schema_arrow


def _arrow_batches(source: Any, opened: contextlib.ExitStack) -> tuple[Batches, pa.Schema]:
    """Of a stream, as `datasets` writes them, or of a file."""
    import pyarrow as pa

    data = opened.enter_context(
        pa.memory_map(str(source)) if isinstance(source, Path) else pa.PythonFile(source)
    )
    is_file = data.read(len(ARROW_MAGIC)) == ARROW_MAGIC
    data.seek(0)
    reader = opened.enter_context((pa.ipc.open_file if is_file else pa.ipc.open_stream)(data))

    def batches(names: list[str] | None) -> Iterator[pa.RecordBatch]:
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            rows = batch if names is None else batch.select(names)
            size = max(1, min(BLOCK_ROWS, BLOCK_BYTES * max(1, rows.num_rows) // max(1, rows.nbytes)))
            yield from (rows.slice(first, size) for first in range(0, rows.num_rows, size))

    return batches, reader.schema


def _without_view(field: pa.Field) -> pa.Field:
    import pyarrow as pa

    kind = field.type
    if pa.types.is_string_view(kind):
        kind = pa.large_string()
    elif pa.types.is_binary_view(kind):
        kind = pa.large_binary()
    elif pa.types.is_struct(kind):
        kind = pa.struct([_without_view(child) for child in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_without_view(kind.key_field), _without_view(kind.item_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_without_view(kind.value_field))
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_without_view(kind.value_field), kind.list_size)
    elif pa.types.is_list(kind):
        kind = pa.list_(_without_view(kind.value_field))
    return field.with_type(kind)


def _describe(schema: pa.Schema) -> str:
    shown = (f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)
    return "{" + ", ".join(shown) + "}"
