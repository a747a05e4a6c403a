"""The records of an output as a multiset, read back from its files, and those that JSON of Parquet rows should hold."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from dagster_divorder.corpus.inputs import BLOCK_BYTES, read_batches
from dagster_divorder.corpus.multiset import Multiset, of_lines, of_rows
from dagster_divorder.corpus.parquet_rows import json_lines, row_bytes
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.ids import Content
from dagster_divorder.store.sources import Source, open_source
from dagster_divorder.store.view import View


def written(files: Iterable[Source]) -> Multiset:
    """The records of JSONL and Parquet files as an output holds them: a line ends with a line feed, and nothing else.

    Raises:
        OSError, InputError: a file cannot be read.
    """
    found = Multiset()
    for path in files:
        for part in _rows_of(path) if path.suffix == ".parquet" else _lines_of(path):
            found += part
    return found


def _rows_of(path: Source) -> Iterator[Multiset]:
    for rows in read_batches(path, None):
        yield of_rows(row_bytes(rows))


def _lines_of(path: Source) -> Iterator[Multiset]:
    with io.BufferedReader(open_source(path), BLOCK_BYTES) as file:  # type: ignore[type-var]
        while lines := file.readlines(BLOCK_BYTES):
            found = of_lines([line.removesuffix(b"\n") for line in lines])
            yield found if lines[-1].endswith(b"\n") else found - Multiset(bytes=1)


def stored(store: Store, view: View, *, as_json: bool) -> Multiset:
    """The records of a view as an output holds them, Parquet rows `as_json` as JSON lines; their content is read."""
    found = Multiset()
    times = np.bincount(view.record_row, minlength=sum(fragment.rows for fragment in view.records))
    of = of_rows if view.kind == "parquet" and not as_json else of_lines
    first = 0
    for fragment in view.records:
        for chunk in read_content(store, fragment.file).chunks:
            records = _spelled(chunk, as_json)
            counts = times[first : first + len(records)].tolist()
            found += of([one for one, count in zip(records, counts, strict=True) for _ in range(count)])
            first += len(records)
    return found


def _spelled(chunk: pa.Array, as_json: bool) -> Sequence[Content]:
    if not pa.types.is_struct(chunk.type):
        return [value.as_buffer() for value in chunk]
    return json_lines(chunk) if as_json else row_bytes(pa.RecordBatch.from_struct_array(chunk))
