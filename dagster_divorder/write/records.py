"""Reads stored records and writes output files: lines, or rows of Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO

import numpy as np
import pyarrow as pa

from dagster_divorder.corpus.parquet_rows import json_lines
from dagster_divorder.corpus.stored import Records
from dagster_divorder.errors import InputError
from dagster_divorder.store.view import View
from dagster_divorder.write.curated import Beginning
from dagster_divorder.write.permute import ReadArray, WriteArrays

LINE_FEED = b"\n"


def stored_records(records: Records, view: View) -> list[ReadArray]:
    """A function for each fragment that reads its records."""
    return [partial(records.records, fragment) for fragment in view.fragments]


@dataclass(frozen=True, slots=True)
class WriteRecords:
    """Writes consecutive arrays of records to a file. With a `schema` the file is Parquet and carries its metadata.
    Otherwise rows of Parquet input (`from_rows`) become JSON lines, and lines with their line feeds stay unchanged."""

    from_rows: bool
    schema: pa.Schema | None

    def __call__(self, parts: Iterator[pa.Array], file: IO[bytes]) -> None:
        """
        Raises:
            InputError: a column has a type that Arrow cannot read after reordering.
        """
        if self.schema:
            _write_parquet(parts, file, self.schema)
            return
        for records in parts:
            if self.from_rows:
                file.write(b"".join([line + b"\n" for line in json_lines(records)]))
            else:
                file.write(value_bytes(records))


@dataclass(frozen=True, slots=True)
class WriteBehind:
    """Writes a file that begins as a published one does, then the records that `write` writes.

    Raises:
        AlteredFileError: see `Beginning.copy`.
    """

    beginning: Beginning
    write: WriteArrays

    def __call__(self, parts: Iterator[pa.Array], file: IO[bytes]) -> None:
        self.beginning.copy(file)
        self.write(parts, file)


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


def value_bytes(values: pa.Array) -> memoryview:
    """The concatenated values of a large_binary array."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int64)[values.offset :][: len(values) + 1]
    return memoryview(data)[bounds[0] : bounds[-1]] if data else memoryview(b"")
