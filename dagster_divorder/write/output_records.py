"""The records of an output as a multiset: read back from its files, or computed from the store."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from dagster_divorder.corpus.inputs import BLOCK_BYTES, read_batches
from dagster_divorder.corpus.multiset import Multiset, of_lines, of_rows
from dagster_divorder.corpus.parquet_rows import json_lines, row_bytes
from dagster_divorder.store.base import Store
from dagster_divorder.store.ids import Content
from dagster_divorder.store.sources import Source, open_source
from dagster_divorder.store.view import View, offsets
from dagster_divorder.write.records import read_records


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
        with io.BufferedReader(open_source(path), BLOCK_BYTES) as file:  # type: ignore[type-var]
            while lines := file.readlines(BLOCK_BYTES):
                records += of_lines([line.removesuffix(b"\n") for line in lines])
                if not lines[-1].endswith(b"\n"):
                    records -= Multiset(bytes=1)
    return records


def stored(store: Store, view: View, *, as_json: bool) -> Multiset:
    """The stored records of a view, in the output's form. as_json: Parquet rows become JSON lines."""
    records = Multiset()
    repeats = np.bincount(view.record_row, minlength=sum(fragment.rows for fragment in view.records))
    multiset_of = of_rows if view.kind == "parquet" and not as_json else of_lines
    for fragment, counts in zip(view.records, np.split(repeats, offsets(view.records)[1:-1]), strict=True):
        contents = _contents(read_records(store, fragment), as_json)
        counted = zip(contents, counts.tolist(), strict=True)
        records += multiset_of([content for content, count in counted for _ in range(count)])
    return records


def _contents(records: pa.Array, as_json: bool) -> Sequence[Content]:
    if not pa.types.is_struct(records.type):
        return [value.as_buffer() for value in records]
    return json_lines(records) if as_json else row_bytes(pa.RecordBatch.from_struct_array(records))
