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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from dagster_divorder.core.fields import columns_of
from dagster_divorder.corpus.compression import CODECS, decompressed, suffix_for
from dagster_divorder.corpus.file_states import PrefixHashes
from dagster_divorder.corpus.looks import ARROW_REMEDY, CSV_REMEDY, LZ4_REMEDY, looks_like
from dagster_divorder.corpus.parquet_rows import row_as_json
from dagster_divorder.errors import InputError
from dagster_divorder.settings import MAX_RECORD_BYTES
from dagster_divorder.store.sources import Source, open_source

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Kind = Literal["jsonl", "parquet"]

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet",)
BLOCK_BYTES = 8 << 20
BLOCK_LINES = 8192
"""Most lines of a block: fragments close after a block, so they have less than twice the intended rows."""
BLOCK_ROWS = 4096
BUFFER_BYTES = 1 << 20
"""Bytes read from each column of a Parquet file at a time."""
SHOWN_BYTES = 1024
"""Bytes of a too long record that its reject keeps."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of one file: raw bytes without terminators, and their 1-based line numbers."""

    path: str
    lines: list[bytes]
    numbers: Sequence[int]
    unterminated: bool = False
    """The block's last line ends the file without a terminator."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of one Parquet file. first: the 1-based number of the first row."""

    path: str
    rows: pa.RecordBatch
    first: int


@dataclass(frozen=True, slots=True)
class LongRecord:
    """A record of more bytes than `input.max_record_bytes`: its 1-based line or row, its bytes read, and its first
    bytes."""

    path: str
    number: int
    size: int
    begins: bytes
    unterminated: bool = False
    """The line ends the file without a terminator, so it may grow."""


Block = LineBlock | RowBlock | LongRecord


def kind_of(path: Source) -> Kind:
    """Kind of a file, from its name.

    Raises:
        InputError: the name has neither ending.
    """
    if kind := kind_by_name(path):
        return kind
    remedies = {".csv": f"; {CSV_REMEDY}", ".tsv": f"; {CSV_REMEDY}", ".arrow": f"; {ARROW_REMEDY}"}
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
    path: Source,
    file: IO[bytes] | None = None,
    prefix: PrefixHashes | None = None,
    limit: int = MAX_RECORD_BYTES,
    block_bytes: int | None = None,
) -> Iterator[LineBlock | LongRecord]:
    """Lines of a JSONL file in blocks of at most `BLOCK_LINES`; a line of more than `limit` bytes is a block of its
    own.

    Args:
        file: the open plain file; by default it is opened.
        prefix: the known part of the file; reading starts after it, and it grows by each whole line.
        block_bytes: about the size of a block; by default `BLOCK_BYTES`.

    Raises:
        InputError: the file cannot be read, its compression differs from its name's, or its compressed data is damaged
            or truncated.
    """
    prefix = prefix or PrefixHashes()
    plain = is_plain(path)
    grows = plain and isinstance(path, Path)
    # The open line in pieces, joined at its end.
    pieces: list[bytes] = []
    size = 0
    long: _LongLine | None = None
    with readable(path, prefix), file or open_source(path) as raw:
        if not prefix.size:
            _check_codec(path, raw)
        raw.seek(prefix.size)
        try:
            source = raw if plain else decompressed(raw, path.suffix)
        except InputError as error:
            raise InputError(f"{path} cannot be read: {error}") from None
        while chunk := source.read(block_bytes or BLOCK_BYTES):
            if long:
                end, newline, chunk = chunk.partition(b"\n")
                long.add(end)
                if not newline:
                    continue
                before = prefix.lines
                prefix.become(long.prefix)
                prefix.end_lines(b"", 1)
                yield long.record(path, before)
                long = None
            ended, newline, rest = chunk.rpartition(b"\n")
            if newline:
                data = b"".join([*pieces, ended])
                lines = data.split(b"\n")
                pieces, size = [], 0
                before = prefix.lines
                prefix.end_lines(data, len(lines))
                yield from _blocks(path, lines, before, limit, opens=not before)
            pieces.append(rest)
            size += len(rest)
            if size > limit:
                long, pieces, size = _LongLine(prefix, pieces), [], 0
    # Nobody appends to a compressed file or a file at a URL in place, so its last line is complete.
    if long:
        yield long.record(path, prefix.lines, unterminated=grows)
    elif rest := b"".join(pieces):
        yield from _blocks(path, [rest], prefix.lines, limit, opens=not prefix.lines, unterminated=grows)


class _LongLine:
    """A line beyond the limit: its size, its first bytes, and the file's prefix with the line so far."""

    def __init__(self, prefix: PrefixHashes, pieces: list[bytes]) -> None:
        self.size = 0
        self.begins = b""
        self.prefix = prefix.copy()
        for piece in pieces:
            self.add(piece)

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        self.begins += piece[: SHOWN_BYTES - len(self.begins)]
        self.prefix.update(piece)

    def record(self, path: Source, before: int, *, unterminated: bool = False) -> LongRecord:
        return LongRecord(str(path), before + 1, self.size, self.begins, unterminated)


def _blocks(
    path: Source, lines: list[bytes], before: int, limit: int, *, opens: bool, unterminated: bool = False
) -> Iterator[LineBlock | LongRecord]:
    """Whole lines as blocks; a line of more than `limit` bytes is a block of its own. before: number of earlier lines
    of the file. opens: the first line is the file's first."""
    long = [at for at, line in enumerate(lines) if len(line) > limit]
    for low, high in pairwise([-1, *long, len(lines)]):
        if low >= 0:
            begins = lines[low][:SHOWN_BYTES]
            yield LongRecord(str(path), before + low + 1, len(lines[low]), begins, unterminated)
        for first in range(low + 1, high, BLOCK_LINES):
            block = lines[first : min(high, first + BLOCK_LINES)]
            yield _line_block(
                path, block, before + first, opens=opens and not first, unterminated=unterminated
            )


def _line_block(
    path: Source, lines: list[bytes], before: int, *, opens: bool, unterminated: bool
) -> LineBlock:
    if opens:
        lines[0] = lines[0].removeprefix(_BOM)
    numbers: Sequence[int] = range(before + 1, before + 1 + len(lines))
    blank = [not line.strip() for line in lines]
    if any(blank):
        numbers = [number for number, skip in zip(numbers, blank, strict=True) if not skip]
        lines = [line for line, skip in zip(lines, blank, strict=True) if not skip]
    return LineBlock(str(path), [line.removesuffix(b"\r") for line in lines], numbers, unterminated)


@contextlib.contextmanager
def readable(path: Source, prefix: PrefixHashes) -> Iterator[None]:
    """Turns an OSError into an InputError. prefix: the part of the file read so far."""
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
            f"{path} cannot be read after line {prefix.lines:,}: {error.strerror or error}; {remedy}"
        ) from error


def _looks(path: Source) -> str:
    """What the first bytes of a file look like, "" if unknown."""
    with readable(path, PrefixHashes()), open_source(path) as file:
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
    """Columns of a Parquet file. known: `FileState.columns`, if the file is unchanged.

    Raises:
        InputError: the file is not Parquet, or its columns differ from `expected`, the first file's.
    """
    import pyarrow as pa

    if known:
        return _checked(path, pa.ipc.read_schema(pa.py_buffer(known)), expected)
    with _open_parquet(path, expected) as (_, schema):
        return schema


def _checked(path: Source, schema: pa.Schema, expected: pa.Schema | None) -> pa.Schema:
    if expected is not None and not schema.equals(expected):
        raise InputError(
            f"{path} has other columns than earlier files: {_describe(schema)}; expected {_describe(expected)}; "
            f"rewrite it with this schema, or give it its own [[input]] block"
        )
    return schema


def read_rows(
    path: Source, schema: pa.Schema | None, limit: int = MAX_RECORD_BYTES
) -> Iterator[RowBlock | LongRecord]:
    """Rows of a Parquet file in blocks of at most `BLOCK_ROWS`; a row of more than `limit` bytes comes by itself.

    Raises:
        InputError: as `read_batches` does.
    """
    first = 0
    for rows in read_batches(path, schema):
        yield from _row_blocks(path, rows, first + 1, limit)
        first += rows.num_rows


def read_batches(
    path: Source, schema: pa.Schema | None, fields: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of a Parquet file, with all columns or the columns of some `fields`. A file without rows gives an empty
    batch, because its columns may be wrong too.

    Raises:
        InputError: the file is not Parquet, or its columns differ from `schema`, the first file's.
    """
    import pyarrow as pa

    with _open_parquet(path, schema) as (file, wanted):
        if fields is not None:
            names = columns_of(fields, wanted.names)
            wanted = pa.schema([field for field in wanted if field.name in names])
        read = 0
        try:
            for rows in file.iter_batches(
                _rows_at_once(file), columns=None if fields is None else wanted.names
            ):
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


def _rows_at_once(file: pq.ParquetFile) -> int:
    """Number of rows of about BLOCK_BYTES in the row group with the largest rows, at most BLOCK_ROWS."""
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    largest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, largest)))


def _row_blocks(
    path: Source, rows: pa.RecordBatch, first: int, limit: int
) -> Iterator[RowBlock | LongRecord]:
    import pyarrow as pa

    def row_at(at: int) -> pa.RecordBatch:
        return rows.take(pa.array([at]))

    long = [at for at in range(rows.num_rows) if row_at(at).nbytes > limit] if rows.nbytes > limit else []
    for low, high in pairwise([-1, *long, rows.num_rows]):
        if low >= 0:
            row = row_at(low)
            yield LongRecord(str(path), first + low, row.nbytes, row_as_json(row)[:SHOWN_BYTES])
        if low + 1 < high or not rows.num_rows:
            yield RowBlock(str(path), rows.slice(low + 1, high - low - 1), first + low + 1)


@contextlib.contextmanager
def _open_parquet(path: Source, expected: pa.Schema | None) -> Iterator[tuple[pq.ParquetFile, pa.Schema]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as opened:
        try:
            source = path if isinstance(path, Path) else opened.enter_context(open_source(path))
            # Through a buffer: a row group may be the whole file.
            file = opened.enter_context(pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False))
            schema = file.schema_arrow
            # Arrow cannot take rows of string views; in a Parquet file they are the same as strings.
            schema = pa.schema([_without_view(field) for field in schema], metadata=schema.metadata)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            looks = _looks(path)
            raise InputError(
                f"{path} cannot be read as Parquet: {error}{f'; it is {looks}' if looks else ''}"
            ) from error
        yield file, _checked(path, schema, expected)


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
