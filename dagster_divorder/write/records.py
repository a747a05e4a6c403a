"""The records of an output: read from the store, written into files, and counted as a multiset of either."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa

from dagster_divorder.corpus.inputs import BLOCK_BYTES, read_batches
from dagster_divorder.corpus.parquet_rows import json_lines, row_bytes
from dagster_divorder.corpus.stored import Records
from dagster_divorder.errors import InputError
from dagster_divorder.store.ids import Content, hash_all, hash_sum, words
from dagster_divorder.store.sources import Source, open_source
from dagster_divorder.store.view import Fragment, View, offsets, spans
from dagster_divorder.write.permute import Permutation, Values

LINE = np.dtype(np.uint8)


def permuted_records(records: Records, view: View, sizes: np.ndarray, rows: np.ndarray) -> Permutation:
    """Stored records in the order of an output, lines with their line feeds. sizes: bytes of each stored record, int
    (n,): of a row of Parquet approximate. rows: the row of the record at each output position, int (M,)."""
    start, row_sizes = offsets(view.fragments), sizes[rows]
    if view.kind == "parquet":
        contents = [partial(records.records, fragment) for fragment in view.fragments]
        first = rows.astype(np.int64)
        return Permutation(contents=contents, start=start, dtype=None, first=first, sizes=row_sizes)
    begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return Permutation(
        contents=[partial(_read_lines, records, fragment) for fragment in view.fragments],
        start=begins[start],
        dtype=LINE,
        first=begins[rows],
        sizes=row_sizes,
        lengths=row_sizes + row_sizes.dtype.type(1),
        filler=ord("\n"),
    )


def _read_lines(records: Records, fragment: Fragment) -> np.ndarray:
    """The bytes of all lines of a fragment, without line feeds, uint8."""
    lines = records.records(fragment)
    _, offsets, data = lines.buffers()
    bounds = np.frombuffer(offsets, np.int64)[lines.offset :][: len(lines) + 1]
    return np.frombuffer(data or b"", LINE)[bounds[0] : bounds[-1]]


@dataclass(frozen=True, slots=True)
class WriteRecords:
    """Writes consecutive arrays of records to a file. With a `schema` the file is Parquet and carries its metadata.
    Otherwise rows of Parquet input (`from_rows`) become JSON lines, and lines with their line feeds stay unchanged.
    begins: a file of lines, and how many of its bytes come first."""

    from_rows: bool
    schema: pa.Schema | None
    begins: tuple[Path, int] | None = None

    def __call__(self, parts: Iterator[Values], file: IO[bytes]) -> None:
        """
        Raises:
            InputError: a column has a type that Arrow cannot read after reordering.
        """
        if self.schema:
            _write_parquet(parts, file, self.schema)
            return
        if self.begins:
            path, size = self.begins
            with open(path, "rb") as earlier:
                while size and (data := earlier.read(min(size, BLOCK_BYTES))):
                    size -= file.write(data)
        for records in parts:
            lines = (
                b"".join([line + b"\n" for line in json_lines(records)]) if self.from_rows else records.data
            )
            file.write(lines)


def common_lines(path: Path, ids: np.ndarray) -> tuple[int, int]:
    """The lines at the beginning of a file that have these record ids, uint64 (n, 2), in order: their number, and their
    bytes."""
    count = size = 0
    with open(path, "rb") as file:
        while lines := file.readlines(BLOCK_BYTES):
            hashes, wanted = words(hash_all([line[:-1] for line in lines])), ids[count : count + len(lines)]
            same = int(np.append((hashes[: len(wanted)] == wanted).all(axis=1), False).argmin())
            count, size = count + same, size + sum(map(len, lines[:same]))
            if same < len(lines):
                break
    return count, size


def _write_parquet(parts: Iterator[pa.Array], file: IO[bytes], schema: pa.Schema) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(pa.PythonFile(file, "w"), schema) as writer:
        for rows in parts:
            try:
                columns = [
                    # Arrow aborts the process on a cast of a slice of list views of nulls, even to the same type.
                    column if column.type == field.type else column.cast(field.type)
                    for column, field in zip(rows.flatten(), schema, strict=True)
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            except pa.ArrowInvalid as error:
                # Arrow versions refuse different nested types here.
                raise InputError(
                    f"Arrow cannot read the type of a column after rows are reordered: {error}; "
                    'set output.format = "jsonl", or leave that column out of the input'
                ) from error


def written(files: Iterable[Source]) -> Multiset:
    """The records of JSONL and Parquet files, read back. A line ends with a line feed only.

    Raises:
        OSError, InputError: a file cannot be read.
    """
    records = Multiset()
    for path in files:
        if path.suffix == ".parquet":
            for rows in read_batches(path, None):
                records += of_rows(row_bytes(rows))
            continue
        with io.BufferedReader(open_source(path), BLOCK_BYTES) as file:
            while lines := file.readlines(BLOCK_BYTES):
                records += of_lines([line.removesuffix(b"\n") for line in lines])
                if not lines[-1].endswith(b"\n"):
                    records += Multiset(bytes=-1)
    return records


def stored(records: Records, view: View, times: np.ndarray, *, as_json: bool) -> Multiset:
    """Stored records of a view, each as often as `times` says, int (N,), in the output's form. as_json: Parquet rows
    become JSON lines."""
    multiset = Multiset()
    multiset_of = of_rows if view.kind == "parquet" and not as_json else of_lines
    for rows, fragment in zip(spans(view.fragments), view.fragments, strict=True):
        contents = _contents(records.records(fragment), as_json)
        counted = zip(contents, times[rows].tolist(), strict=True)
        multiset += multiset_of([content for content, count in counted for _ in range(count)])
    return multiset


def _contents(records: pa.Array, as_json: bool) -> Sequence[Content]:
    if not pa.types.is_struct(records.type):
        return [value.as_buffer() for value in records]
    return json_lines(records) if as_json else row_bytes(pa.RecordBatch.from_struct_array(records))


@dataclass(frozen=True, slots=True)
class Multiset:
    """records: number of records; hashes: sum of their hashes; bytes: of lines with their ends, 0 for Parquet rows."""

    records: int = 0
    hashes: int = 0
    bytes: int = 0

    def __add__(self, other: Multiset) -> Multiset:
        return Multiset(
            self.records + other.records, (self.hashes + other.hashes) % (1 << 128), self.bytes + other.bytes
        )


def of_lines(lines: Sequence[Content]) -> Multiset:
    """The multiset of lines without their ends."""
    return Multiset(len(lines), hash_sum(words(hash_all(lines))), sum(map(len, lines)) + len(lines))


def of_rows(rows: Sequence[Content]) -> Multiset:
    """The multiset of rows as `row_bytes` spells them."""
    return Multiset(len(rows), hash_sum(words(hash_all(rows))))
