"""Fields of records as columns: a trait or the source of every record, from the stored records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa


def extract(content: pa.ChunkedArray, fields: Sequence[str]) -> pa.Table:
    """Columns of record content; a record that lacks a field has null there.

    JSONL values become float64 where all of a chunk's are numbers, else text (other JSON as its text); Parquet
    columns keep their type.
    """
    if pa.types.is_struct(content.type):
        table = pa.Table.from_struct_array(content)
        missing = pa.nulls(table.num_rows)
        columns = [table.column(f) if f in table.column_names else missing for f in fields]
        return pa.table(dict(zip(fields, columns, strict=True)))
    records = [orjson.loads(line) for line in content.to_pylist()]
    return pa.table({field: _column([record.get(field) for record in records]) for field in fields})


def _column(values: list[Any]) -> pa.Array:
    if all(
        value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values
    ):
        return pa.array([None if value is None else float(value) for value in values], type=pa.float64())
    return pa.array([_as_text(value) for value in values], type=pa.large_string())


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def concat(parts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Parts of one column as one; where some are numbers and some text, all text."""
    types = {part.type for part in parts if not pa.types.is_null(part.type)}
    if len(types) > 1:
        parts = [part.cast(pa.large_string()) for part in parts]
    elif types:
        parts = [part.cast(next(iter(types))) for part in parts]
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], type=parts[0].type)
