"""The corpus as the user has it: which files, and their records block by block, in order.

A record is the raw bytes read: a JSONL line without its terminator (LF or CRLF) or a leading BOM, or a Parquet row with
all its columns. Blank lines are no records. A last line without terminator that is not valid JSON is a line still
being written: it is left for the next run (in a compressed file, which is never appended to in place, it is refused).
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from dagster_divorder.errors import InputError
from dagster_divorder.store.readings import Prefix

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Kind = Literal["jsonl", "parquet"]

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
COMPRESSION_SUFFIXES = (".gz", ".zst")
PARQUET_SUFFIXES = (".parquet",)
BLOCK_BYTES = 8 << 20
BLOCK_ROWS = 4096
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of one file: raw bytes without terminators, and their 1-based line numbers."""

    path: str
    lines: list[bytes]
    numbers: Sequence[int]
    unterminated: bool = False
    """The last line of this block ends the file without a terminator."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Consecutive rows of one Parquet file, `first` being the 1-based number of the first."""

    path: str
    rows: pa.RecordBatch
    first: int


def find_files(patterns: Iterable[str]) -> tuple[Kind, list[Path]]:
    """Files of a corpus, in the order given; inside a folder or a glob, by name. A file matched twice is read once.

    Raises:
        InputError: a pattern matches nothing, a file is neither JSONL nor Parquet, or both kinds are mixed.
    """
    files: dict[str, Path] = {}
    for pattern in patterns:
        matches = _match(pattern)
        if not matches:
            raise InputError(
                f"input.paths: no file matches {pattern!r}; expected a JSONL ({', '.join(JSONL_SUFFIXES)}, plain or "
                f"{' or '.join(COMPRESSION_SUFFIXES)}) or Parquet file, a folder of them, or a glob"
            )
        for path in matches:
            _check_name(path)
            files.setdefault(os.path.realpath(path), path)
    kinds = {kind_of(path): path for path in files.values()}
    if len(kinds) > 1:
        raise InputError(
            f"input.paths mixes JSONL ({kinds['jsonl']}) and Parquet ({kinds['parquet']}); "
            "the output has its input's kind, so convert one of them or run them apart"
        )
    return next(iter(kinds)), list(files.values())


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"input.paths: the name {os.fsencode(path)!r} is not valid UTF-8; rename it, as every report and reject "
            "has to name it"
        ) from None


def _match(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        return sorted(
            file
            for file in path.rglob("*")
            if file.is_file()
            and _is_corpus_file(file)
            and not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        )
    return sorted(Path(match) for match in glob.glob(pattern, recursive=True) if Path(match).is_file())


def _is_corpus_file(path: Path) -> bool:
    return _bare_name(path).endswith((*JSONL_SUFFIXES, *PARQUET_SUFFIXES))


def _bare_name(path: Path) -> str:
    name = path.name.lower()
    for suffix in COMPRESSION_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def kind_of(path: Path) -> Kind:
    """Kind of a file, from its name.

    Raises:
        InputError: the name ends in neither.
    """
    if path.name.lower().endswith(PARQUET_SUFFIXES):
        return "parquet"
    if _bare_name(path).endswith(JSONL_SUFFIXES):
        return "jsonl"
    raise InputError(
        f"{path} is neither JSONL nor Parquet by its name; expected one of "
        f"{', '.join((*JSONL_SUFFIXES, *PARQUET_SUFFIXES))} (JSONL also with {' or '.join(COMPRESSION_SUFFIXES)})"
    )


def read_lines(
    path: Path, file: IO[bytes] | None = None, prefix: Prefix | None = None
) -> Iterator[LineBlock]:
    """Lines of a JSONL file in blocks of about `BLOCK_BYTES`.

    Args:
        file: the plain file, open; by default it is opened.
        prefix: what is known of it; reading goes on behind it, and it grows by each whole line that is read.

    Raises:
        InputError: the file cannot be read or its compressed data is damaged or cut short.
    """
    prefix = prefix or Prefix()
    plain = is_plain(path)
    rest = b""
    first = not prefix.size
    with readable(path, prefix), file or _open_bytes(path) as source:
        if prefix.size:
            source.seek(prefix.size)
        while chunk := source.read(BLOCK_BYTES):
            data = rest + chunk
            *lines, rest = data.split(b"\n")
            if not lines:
                continue
            if first:
                lines[0] = lines[0].removeprefix(_BOM)
                first = False
            before = prefix.lines
            prefix.lines += len(lines)
            if plain:
                prefix.update(memoryview(data)[: len(data) - len(rest)])
            yield _line_block(path, lines, before)
    if first:
        rest = rest.removeprefix(_BOM)
    if rest.strip():
        # A compressed file is never appended to in place, so its last line is not one still being written.
        yield _line_block(path, [rest], prefix.lines, unterminated=plain)


@contextlib.contextmanager
def readable(path: Path, prefix: Prefix) -> Iterator[None]:
    """Turns what the system says of a file that cannot be read, after the lines of `prefix`, into an InputError."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path} vanished while it was read; run again") from None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read after line {prefix.lines}: {error.strerror or error}; "
            "a compressed file that is damaged or cut short must be copied or compressed again"
        ) from error


def is_plain(path: Path) -> bool:
    """Whether a JSONL file is uncompressed, by its name: such a file may grow in place."""
    return path.suffix.lower() not in COMPRESSION_SUFFIXES


def _line_block(path: Path, lines: list[bytes], before: int, *, unterminated: bool = False) -> LineBlock:
    numbers: Sequence[int] = range(before + 1, before + 1 + len(lines))
    blank = [not line.strip() for line in lines]
    if any(blank):
        numbers = [number for number, skip in zip(numbers, blank, strict=True) if not skip]
        lines = [line for line, skip in zip(lines, blank, strict=True) if not skip]
    return LineBlock(str(path), [line.removesuffix(b"\r") for line in lines], numbers, unterminated)


def _open_bytes(path: Path) -> IO[bytes]:
    if is_plain(path):
        return open(path, "rb", buffering=0)
    import pyarrow as pa

    if not path.stat().st_size:
        raise OSError("it has no bytes, and compressed data has at least a header")
    codec = {".gz": "gzip", ".zst": "zstd"}[path.suffix.lower()]
    # Arrow's codecs raise on a stream cut short and read concatenated members; zstandard's own reader takes a frame
    # cut short for the end of the data.
    return pa.CompressedInputStream(pa.OSFile(str(path)), codec)


def read_schema(path: Path, expected: pa.Schema | None) -> pa.Schema:
    """Columns of a Parquet file.

    Raises:
        InputError: the file is no Parquet, or its columns differ from `expected`, the first file's.
    """
    with _open_parquet(path, expected) as (_, found):
        return found


def read_rows(path: Path, schema: pa.Schema | None) -> Iterator[RowBlock]:
    """Rows of a Parquet file in blocks of `BLOCK_ROWS`.

    Raises:
        InputError: the file is no Parquet, or its columns differ from `schema`, the first file's.
    """
    import pyarrow as pa

    with _open_parquet(path, schema) as (file, found):
        first = 1
        try:
            for rows in file.iter_batches(batch_size=BLOCK_ROWS):
                # Of some nested types, such as lists of nulls, Arrow reads fewer values than it counts.
                rows.validate()
                yield RowBlock(str(path), rows if rows.schema.equals(found) else rows.cast(found), first)
                first += rows.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{path} is damaged after row {first - 1}, or has a type that Arrow cannot read: {error}; "
                "copy it again, or rewrite it with other types"
            ) from error
        if first == 1:
            # Even without rows its columns count: as the first file's, and as ones that may be wrong.
            empty = [pa.nulls(0, field.type) for field in found]
            yield RowBlock(str(path), pa.RecordBatch.from_arrays(empty, schema=found), first)


@contextlib.contextmanager
def _open_parquet(path: Path, expected: pa.Schema | None) -> Iterator[tuple[pq.ParquetFile, pa.Schema]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        found = _without_views(file.schema_arrow)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error
    with file:
        if expected is not None and not found.equals(expected):
            raise InputError(
                f"{path} has other columns than the files before it: {_describe(found)}; "
                f"expected {_describe(expected)}; rewrite it with that schema or run it apart"
            )
        yield file, found


def _without_views(schema: pa.Schema) -> pa.Schema:
    """String views, of which Arrow takes no rows, as strings: a Parquet file holds the same for either."""
    import pyarrow as pa

    return pa.schema([_without_view(field) for field in schema], metadata=schema.metadata)


def _without_view(field: pa.Field) -> pa.Field:
    import pyarrow as pa

    of = field.type
    if pa.types.is_string_view(of):
        of = pa.large_string()
    elif pa.types.is_binary_view(of):
        of = pa.large_binary()
    elif pa.types.is_struct(of):
        of = pa.struct([_without_view(child) for child in of])
    elif pa.types.is_map(of):
        of = pa.map_(_without_view(of.key_field), _without_view(of.item_field))
    elif pa.types.is_large_list(of):
        of = pa.large_list(_without_view(of.value_field))
    elif pa.types.is_fixed_size_list(of):
        of = pa.list_(_without_view(of.value_field), of.list_size)
    elif pa.types.is_list(of):
        of = pa.list_(_without_view(of.value_field))
    return field.with_type(of)


def _describe(schema: pa.Schema) -> str:
    return "{" + ", ".join(f"{field.name}: {field.type}" for field in schema) + "}"
