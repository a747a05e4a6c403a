"""The records of one input file, block by block, in order.

A record is the raw bytes read: a JSONL line without its terminator (LF or CRLF) or a leading BOM, or a row of a Parquet
or Arrow file with all its columns. Blank lines are not records. A last line without terminator that begins an object
but is not valid JSON is still being written: it is left for the next run. (In a compressed file and at a URL it is
refused: nobody appends to these in place.)

Guarantee: the same records whatever the block sizes, in time linear in the file. A file with a line beyond the limit of
a record is refused. Memory: a few times BLOCK_BYTES and the longest record. Known weakness: a whole page of a column of
Parquet is in memory.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.core.fields import columns_of
from dagster_divorder.corpus.looks import looks_like
from dagster_divorder.corpus.parquet_rows import row_bytes
from dagster_divorder.errors import InputError
from dagster_divorder.settings.sections import MAX_RECORD_BYTES
from dagster_divorder.store.ids import hash_all, words
from dagster_divorder.store.sources import Source, open_source

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CODECS = {".gz": "gzip", ".zst": "zstd"}
"""Codecs by the end of a file's name."""
OTHERS = {".lz4": "lz4 -d", ".bz2": "bunzip2", ".xz": "unxz"}
"""Codecs that are not read, and the command that decompresses such a file."""
DAMAGE = (OSError, EOFError, zlib.error, zstd.ZstdError)
"""Errors of reading a damaged or truncated file."""
Kind = Literal["jsonl", "parquet"]

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
ARROW_SUFFIX = ".arrow"
PARQUET_SUFFIXES = (".parquet", ARROW_SUFFIX)
"""Files of rows. Arrow's, of streams or files, are read as Parquet is."""
BLOCK_BYTES = 8 << 20
BLOCK_ROWS = 4096
BUFFER_BYTES = 1 << 20
"""Bytes read from each column of a Parquet file at a time."""
SHOWN_BYTES = 1024
"""Bytes of content that are looked at to say what it is."""
_BOM = b"\xef\xbb\xbf"
NOTHING = memoryview(b"")
_NO_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:NaN|Infinity)\b', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """n consecutive lines or rows of one file.

    content: lines without terminators, or Parquet rows. starts: offset of each line, or number of each row, in the
    file, int64 (n,), from 0; of a compressed file, of its content. ids: uint64 (n, 2). sizes: bytes, int64 (n,). blank:
    bool (n,). unfinished: offset and first bytes of an incomplete line that follows the block's last one and ends the
    file. raw: the bytes of the file that they lie in, if it may grow (`may_grow`).
    """

    content: list[bytes] | pa.RecordBatch
    starts: np.ndarray
    ids: np.ndarray
    sizes: np.ndarray
    blank: np.ndarray
    unfinished: tuple[int, bytes] | None = None
    raw: memoryview = NOTHING

    def __len__(self) -> int:
        return len(self.starts)

    def lines(self, low: int, high: int) -> Block:
        """Lines or rows [low, high), without what follows the block."""
        starts, ids, sizes, blank = (
            array[low:high] for array in (self.starts, self.ids, self.sizes, self.blank)
        )
        end = self.starts[high] - self.starts[0] if high < len(self) else None
        raw = self.raw[self.starts[low] - self.starts[0] : end]
        return Block(self.content[low:high], starts, ids, sizes, blank, raw=raw)


def joined(blocks: Sequence[Block]) -> Block:
    """Blocks of one kind, end to end."""
    if len(blocks) == 1:
        return blocks[0]
    contents: list[Any] = [block.content for block in blocks]
    arrays = zip(*((each.starts, each.ids, each.sizes, each.blank) for each in blocks), strict=True)
    content = list(chain(*contents)) if isinstance(contents[0], list) else pa.concat_batches(contents)
    starts, ids, sizes, blank = map(np.concatenate, arrays)
    return Block(content, starts, ids, sizes, blank)


def kind_of(path: Source) -> Kind | None:
    """Kind of a file, from its name; None if it is neither JSONL nor Parquet. Raises InputError: the file is JSONL
    compressed by another codec."""
    suffix = path.suffix.lower()
    bare = path.name.lower().removesuffix(suffix if suffix in (*CODECS, *OTHERS) else "")
    if suffix in PARQUET_SUFFIXES or not bare.endswith(JSONL_SUFFIXES):
        return "parquet" if suffix in PARQUET_SUFFIXES else None
    if suffix in OTHERS:
        raise InputError(
            f"{path} is compressed by {suffix[1:]}, which is not read; decompress it (`{OTHERS[suffix]} FILE`), or "
            f"compress it with zstd"
        )
    return "jsonl"


def decompressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """The content of an open compressed file; its name tells the codec."""
    if suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    # The default refuses the windows of `zstd --long`.
    return cast(IO[bytes], zstd.ZstdFile(file, options={int(zstd.DecompressionParameter.window_log_max): 31}))


def is_plain(path: Source) -> bool:
    """Whether a JSONL file is uncompressed, by its name."""
    return path.suffix.lower() not in CODECS


def may_grow(path: Source) -> bool:
    """Whether a file is JSONL to which others may append in place: plain, and on this machine."""
    return isinstance(path, Path) and path.suffix.lower() not in (*CODECS, *PARQUET_SUFFIXES)


def read_lines(path: Source, limit: int = MAX_RECORD_BYTES, *, first: int = 0) -> Iterator[Block]:
    """Lines of a JSONL file in blocks of about BLOCK_BYTES.

    Args:
        limit: most bytes of a record.
        first: offset of a line of a plain file, where reading starts.

    Raises:
        InputError: the file cannot be read, its compressed data is damaged, truncated or of another codec than its
            name says, or a line is too long.
    """
    plain, grows, at, number = is_plain(path), may_grow(path), first, 0
    with readable(path, lambda: f"byte {at:,}" if first else f"line {number:,}"), open_source(path) as raw:
        if not plain and not raw.read(1):
            raise EOFError("it is empty")
        raw.seek(first)
        source = io.BufferedReader(raw, BUFFER_BYTES) if plain else decompressed(raw, path.suffix)
        while data := source.read(BLOCK_BYTES):
            data += source.readline(limit + 1)
            *lines, last = data.split(b"\n")
            end, unfinished = at + len(data), None
            # Else the last line is complete.
            if grows and _is_incomplete(last if at or lines else last.removeprefix(_BOM)):
                unfinished = (end - len(last), last[:SHOWN_BYTES])
            elif last:
                lines.append(last)
            for place, line in enumerate(lines):
                if len(line) > limit:
                    looks = CR_ENDS if b"\r" in line else looks_like(line[:SHOWN_BYTES])
                    raise InputError(
                        f"{path}: {f'a line from byte {first:,} on' if first else f'line {number + place + 1:,}'} has "
                        f"more than {limit:,} bytes, too many for a record{f'; it is {looks}' if looks else ''}: "
                        f"correct the file, or leave it out of input.paths"
                    )
            held = memoryview(data)[: unfinished[0] - at if unfinished else None] if grows else NOTHING
            block = _line_block(lines, at, unfinished, held)
            yield block
            at, number = end, number + len(block)


CR_ENDS = "CR line ends, expected LF or CRLF; convert them with tr '\\r' '\\n'"


def parse(line: bytes) -> Any:
    """The JSON value of a line. `NaN` and `Infinity`, which Python's json writes, are not JSON; they are read as null,
    so that no record is lost for a number that nobody uses. Raises orjson.JSONDecodeError: the line is not JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        # Strings match too and stay unchanged: words in them are not literals.
        return orjson.loads(_NO_NUMBER.sub(lambda match: match[0] if match[0][:1] == b'"' else b"null", line))


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


def _line_block(lines: list[bytes], at: int, unfinished: tuple[int, bytes] | None, raw: memoryview) -> Block:
    """Lines without LF as a block. at: offset of the first one."""
    lengths = np.fromiter(map(len, lines), np.int64, len(lines))
    lines = [line.removesuffix(b"\r") for line in lines]
    if lines and not at:
        lines[0] = lines[0].removeprefix(_BOM)
    ids = words(hash_all(lines))
    sizes = np.fromiter(map(len, lines), np.int64, len(lines))
    blank = np.fromiter((not line or line.isspace() for line in lines), bool, len(lines))
    return Block(lines, at + np.cumsum(lengths + 1) - lengths - 1, ids, sizes, blank, unfinished, raw)


@contextlib.contextmanager
def readable(path: Source, read: Callable[[], str] = lambda: "line 0") -> Iterator[None]:
    """Turns errors of reading into an InputError. read: what was read last."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} vanished during reading; run again") from None
    except DAMAGE as error:
        remedy = "copy it again, or leave it out of input.paths"
        if isinstance(error, PermissionError):
            remedy = "make it readable for this user, or leave it out of input.paths"
        elif not is_plain(path):
            remedy = "copy or compress a damaged or truncated compressed file again"
        raise InputError(
            f"{path} cannot be read after {read()}: {getattr(error, 'strerror', None) or error}; {remedy}"
        ) from error


def read_schema(path: Source, expected: pa.Schema | None, known: str = "") -> pa.Schema:
    """Columns of a Parquet file. known: `ReadFile.columns` if the file is unchanged. Raises InputError:
    the file is not Parquet, or its columns differ from `expected`, the first file's."""
    if known:
        return _checked(path, pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(known))), expected)
    with _open_rows(path, expected) as (_, schema):
        return schema


def _checked(path: Source, schema: pa.Schema, expected: pa.Schema | None) -> pa.Schema:
    if expected is not None and not schema.equals(expected):
        shown, wanted = (
            ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in each)
            for each in (schema, expected)
        )
        raise InputError(
            f"{path} has other columns than earlier files: {{{shown}}}; expected {{{wanted}}}; "
            f"rewrite it with this schema, or give it its own [[input]] block"
        )
    return schema


def read_rows(
    path: Source, schema: pa.Schema | None, limit: int = MAX_RECORD_BYTES, *, first: int = 0
) -> Iterator[Block]:
    """Rows of a Parquet file from row `first` on, in blocks of at most `BLOCK_ROWS`. A file without rows gives an empty
    block. Raises InputError: as `read_batches` does, or a row is too long."""
    at = 0
    for batch in read_batches(path, schema):
        low, at = max(0, first - at), at + batch.num_rows
        if low < batch.num_rows or not batch.num_rows:
            rows = batch.slice(low)
            raw = row_bytes(rows)
            sizes = np.fromiter(map(len, raw), np.int64, len(raw))
            starts = np.arange(at - len(raw), at)
            for row in starts[sizes > limit]:
                raise InputError(
                    f"{path}: row {row + 1:,} has more than {limit:,} bytes, too many for a record: leave it out"
                )
            yield Block(rows, starts, words(hash_all(raw)), sizes, np.zeros(len(raw), bool))


def read_batches(
    path: Source, schema: pa.Schema | None, fields: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of a Parquet file, with all columns or the columns of some `fields`. A file without rows gives an empty
    batch, because its columns may be wrong too. Raises InputError: the file is not Parquet, or its columns differ from
    `schema`, the first file's."""
    with _open_rows(path, schema) as (batches, wanted):
        names = wanted.names if fields is None else columns_of(fields, wanted.names)
        wanted = pa.schema([field for field in wanted if field.name in names], metadata=wanted.metadata)
        read = 0
        try:
            for rows in batches(None if fields is None else wanted.names):
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


_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Arrow cannot take rows of these types. In a Parquet file they are the same as the others."""


_Batches = Callable[[list[str] | None], Iterator[pa.RecordBatch]]
"""Gives the rows of an open file, with all columns or some; more than BLOCK_BYTES at a time only if a row has them."""


@contextlib.contextmanager
def _open_rows(path: Source, expected: pa.Schema | None) -> Iterator[tuple[_Batches, pa.Schema]]:
    """The rows and the columns of a Parquet or Arrow file."""
    is_arrow = path.suffix.lower() == ARROW_SUFFIX
    with contextlib.ExitStack() as opened:
        try:
            source = path if isinstance(path, Path) else opened.enter_context(open_source(path))
            batches, schema = (_arrow_batches if is_arrow else _parquet_batches)(source, opened)
            fields = [field.with_type(_VIEWS.get(field.type, field.type)) for field in schema]
            schema = pa.schema(fields, metadata=schema.metadata)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            with readable(path), open_source(path) as raw:
                looks = looks_like(raw.read(SHOWN_BYTES))
            kind = "Arrow" if is_arrow else "Parquet"
            raise InputError(
                f"{path} cannot be read as {kind}: {error}{f'; it is {looks}' if looks else ''}"
            ) from error
        yield batches, _checked(path, schema, expected)


def _parquet_batches(source: Any, opened: contextlib.ExitStack) -> tuple[_Batches, pa.Schema]:
    import pyarrow.parquet as pq

    # Through a buffer: a row group may be the whole file.
    file = opened.enter_context(pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False))
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    largest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    size = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, largest)))
    return lambda names: file.iter_batches(size, columns=names), file.schema_arrow


def _arrow_batches(source: Any, opened: contextlib.ExitStack) -> tuple[_Batches, pa.Schema]:
    """Of a stream, as `datasets` writes them, or of a file."""
    opens = pa.memory_map if isinstance(source, Path) else pa.PythonFile
    data = opened.enter_context(opens(str(source) if isinstance(source, Path) else source))
    is_file = data.read(6) == b"ARROW1"
    data.seek(0)
    reader = opened.enter_context((pa.ipc.open_file if is_file else pa.ipc.open_stream)(data))

    def batches(names: list[str] | None) -> Iterator[pa.RecordBatch]:
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            rows = batch if names is None else batch.select(names)
            size = max(1, min(BLOCK_ROWS, BLOCK_BYTES * max(1, rows.num_rows) // max(1, rows.nbytes)))
            yield from (rows.slice(first, size) for first in range(0, rows.num_rows, size))

    return batches, reader.schema
