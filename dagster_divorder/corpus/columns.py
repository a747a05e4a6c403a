"""Fields of stored records as columns: a trait or the source of every record.

`core.fields` says how fields are named.

All records of a view together decide a column's type, never single fragments. Otherwise one text among a fragment's
numbers, or in a deleted record, would make the column depend on the corpus's history.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.core.arrow import number_array, text_array
from dagster_divorder.core.fields import column_at, value_at
from dagster_divorder.core.order.traits import MAX_CATEGORIES, as_category, is_whole, number_text
from dagster_divorder.corpus.inputs import parse
from dagster_divorder.errors import InputError

_JSON_VALUE = pa.struct([("number", pa.float64()), ("text", pa.large_string())])
"""A JSON value as stored: a number, or anything else as text; both null if the field is null or missing. A whole number
from 2^53 on has both: its digits are the text."""


def extract(content: pa.ChunkedArray, fields: Sequence[str]) -> pa.Table:
    """Columns of record content; null if a record lacks the field.

    JSONL values are stored as `settle` reads them; Parquet columns keep their type. Raises InputError: several Parquet
    columns have one of the names.
    """
    if pa.types.is_struct(content.type):
        table = pa.Table.from_struct_array(content)
        columns = {field: column_at(table, field) for field in fields}
        missing = pa.nulls(table.num_rows)
        return pa.table({f: missing if column is None else column for f, column in columns.items()})
    records = [parse(line) for line in content.to_pylist()]
    return pa.table({field: _column([value_at(record, field) for record in records]) for field in fields})


def sources(content: pa.ChunkedArray, column: pa.ChunkedArray, constant: str | None) -> pa.ChunkedArray:
    """Sources of the records of one of several inputs. Their type is the same for all inputs: for lines that of
    `extract`, for rows text. A `constant` replaces the column. Raises InputError: the column holds neither texts nor
    numbers."""
    rows = pa.types.is_struct(content.type)
    if constant is not None:
        values = [constant] * len(content)
        return pa.chunked_array([text_array(values) if rows else _column(values)])
    try:
        return as_category(column).cast(pa.large_string()) if rows else column
    except pa.ArrowException:
        raise InputError(
            f"the source of one of several inputs is a column of {column.type}; expected texts or numbers"
        ) from None


def _column(values: list[Any]) -> pa.Array:
    numbers, texts = list[float | None](), list[str | None]()
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers.append(float(value))
            is_exact = isinstance(value, float) or abs(value) < 1 << 53
            texts.append(None if is_exact else str(value))
        else:
            numbers.append(None)
            texts.append(_as_text(value))
    parts = [number_array(numbers, np.float64), text_array(texts)]
    return pa.StructArray.from_arrays(parts, fields=list(_JSON_VALUE))


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError:
        # orjson reads 1,024 levels but writes 254. All deeper values become one category.
        return "(nested too deeply)"


def settle(column: pa.ChunkedArray, *, categories: bool = False) -> pa.ChunkedArray:
    """Values of records: numbers if all are, else text with numbers in their shortest form. Whole numbers of which
    float64 would round some have every digit if they fit 64 bits. categories: whole numbers become text as in
    `as_category`, with every digit."""
    if column.type != _JSON_VALUE:
        return as_category(column) if categories else column
    import pyarrow.compute as pc

    number, text = pc.struct_field(column, "number"), pc.struct_field(column, "text")
    if pc.any(pc.and_(pc.is_valid(text), pc.is_null(number))).as_py():
        return number_or_text(number, text)
    if text.null_count == len(text):
        return as_category(number) if categories else number
    if not is_whole(pc.if_else(pc.is_valid(text), 0.0, number)):
        return number
    exact = number_or_text(number, text)
    if categories and pc.count_distinct(exact).as_py() <= MAX_CATEGORIES:
        return exact
    for kind in (pa.int64(), pa.uint64()):
        with contextlib.suppress(pa.ArrowInvalid):
            return exact.cast(kind)
    return number


def number_or_text(number: pa.ChunkedArray, text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that are numbers, texts or null: numbers if all are, else text. As text, numbers have their shortest form,
    and whole numbers all digits."""
    import pyarrow.compute as pc

    if text.null_count == len(text):
        return number
    return text if number.null_count == len(number) else pc.coalesce(text, number_text(number))
