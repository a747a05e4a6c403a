"""Parquet rows of any Arrow type as bytes, the input of their ids' hashes, and as JSON.

Law of the bytes: rows of equal columns have equal bytes exactly if Arrow holds the same values; -0.0 differs from 0.0,
and the payload of a NaN does not count. Batches, offsets, dictionaries and bytes under a null do not matter. Law of the
JSON: with the column's type it restores the value, except the payload of a NaN. docs/json_of_parquet.md has the form of
every type.
"""

from __future__ import annotations

import base64
import math
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from blake3 import blake3

from dagster_divorder.core.arrow import is_list, is_text, plain_array
from dagster_divorder.errors import InputError
from dagster_divorder.store.ids import ID_BYTES


def row_bytes(rows: pa.RecordBatch) -> list[bytes]:
    """The bytes of each of n rows: a hash of the columns' names and types; the values as JSON without names, where a
    text and a list of numbers are their length; the bytes of these."""
    head = blake3(orjson.dumps(_spelled(pa.struct(list(rows.schema))))).digest(ID_BYTES)
    # The first ones count the rows, which may have no columns.
    values, contents = [[()] * rows.num_rows], [[b""] * rows.num_rows]
    for column in map(_plain, rows.columns):
        measured, content = _measured(*column)
        values.append(measured)
        contents += content
    rest = map(b"".join, zip(*contents, strict=True))
    return [
        head + orjson.dumps(row) + each for row, each in zip(zip(*values, strict=True), rest, strict=True)
    ]


def _measured(column: pa.Array, kind: pa.DataType) -> tuple[list[Any], list[list[bytes]]]:
    """n values of a plain column for JSON. Of texts and of lists of numbers their lengths, and beside them their
    bytes: JSON of long values is slow."""
    import pyarrow.compute as pc

    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = column.cast(pa.large_binary())
        return pc.binary_length(texts).to_pylist(), [texts.fill_null(b"").to_pylist()]
    if is_list(kind) and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        lengths, items = _items(column)
        numbers = items.fill_null(0).to_numpy()
        cells = np.empty(len(items), [("valid", np.uint8), ("number", numbers.dtype)])
        cells["valid"], cells["number"] = _valid(items), numbers
        if numbers.dtype.kind == "f":
            cells["number"][np.isnan(numbers)] = np.nan
        data, bounds = cells.tobytes(), pairwise((_ends(lengths) * cells.itemsize).tolist())
        known = zip(lengths.tolist(), _valid(column), strict=True)
        return [n if valid else None for n, valid in known], [[data[low:high] for low, high in bounds]]
    return json_values(column, named=False), []


def _spelled(kind: pa.DataType) -> str | list[Any]:
    """A type as JSON, without names that Arrow does not compare, such as the name of a list's items."""
    if pa.types.is_struct(kind):
        return [[field.name, field.nullable, _spelled(field.type)] for field in kind]
    inner: tuple[pa.Field, ...]
    if pa.types.is_map(kind):
        inner = (kind.key_field, kind.item_field)
    elif is_list(kind):
        inner = (kind.value_field,)
    else:
        return str(kind)
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    return [kind.id, size, *([field.nullable, _spelled(field.type)] for field in inner)]


def json_lines(rows: pa.StructArray) -> list[bytes]:
    """Rows as JSON objects. Raises InputError: a column has no JSON form."""
    return [orjson.dumps(row) for row in json_values(rows)]


def row_as_json(row: pa.RecordBatch) -> bytes:
    """One row as readable JSON, with all columns; a value without a JSON form becomes the reason."""
    members = []
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            (value,) = json_values(column)
        except InputError as error:
            value = f"({error})"
        members.append(orjson.dumps(name) + b":" + orjson.dumps(value))
    return b"{" + b",".join(members) + b"}"


_AS_JSON = "rows must be written as JSON (output.format = 'jsonl', or inputs of different shapes)"
_AS_PARQUET = "use output.format = 'parquet', if all inputs are Parquet with the same columns"


def check_columns(schema: pa.Schema, *, as_json: bool) -> None:
    """Checks, without rows, that columns can be read and, if asked, written as JSON. Raises InputError: a column
    cannot; the message names it and its type."""
    if as_json and (doubled := _doubled(schema.names)):
        raise InputError(
            f"{_AS_JSON}: several columns are called {doubled!r}, which one JSON object cannot "
            f"hold; rename all but one, or {_AS_PARQUET}"
        )
    for field in schema:
        none = pa.nulls(0, field.type)
        try:
            json_values(none.take(plain_array(np.empty(0, np.int64))), named=False)
        except (pa.ArrowNotImplementedError, InputError) as error:
            raise InputError(
                f"column {field.name!r} has type {field.type}, and rows of this type cannot be taken ({error}); "
                f"rewrite the files with another type, or without this column"
            ) from None
        if as_json:
            try:
                json_values(none)
            except InputError as error:
                raise InputError(
                    f"{_AS_JSON}: column {field.name!r} of type {field.type} has no JSON form: {error}; leave this "
                    f"column out, or {_AS_PARQUET}"
                ) from None


def json_values(column: pa.Array, *, objects: bool = False, named: bool = True) -> list[Any]:
    """n values that orjson can write, None for a null. objects: maps as objects, not as lists of entries. named:
    structs as objects, not as lists of values. Raises InputError: the type has no JSON form."""
    if objects and pa.types.is_map(column.type):
        lists = json_values(_plain(column)[0], objects=True)
        return [
            each if each is None else {str(pair["key"]): pair["value"] for pair in each} for each in lists
        ]
    column, kind = _plain(column)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if named and (doubled := _doubled(names)):
            raise InputError(f"it has several fields called {doubled!r}")
        children = [json_values(child, objects=objects, named=named) for child in column.flatten()]
        rows = zip(*children, strict=True) if children else [()] * len(column)
        values = [dict(zip(names, row, strict=True)) if named else row for row in rows]
        return [value if valid else None for value, valid in zip(values, _valid(column), strict=True)]
    if is_list(kind):
        lengths, items = _items(column)
        values = json_values(items, objects=objects, named=named)
        bounds = zip(pairwise(_ends(lengths).tolist()), _valid(column), strict=True)
        return [values[low:high] if valid else None for (low, high), valid in bounds]
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64()).to_pylist()
        return [n if n is None or math.isfinite(n) else _NOT_FINITE.get(n, "NaN") for n in numbers]
    if pa.types.is_decimal(kind):
        return [None if number is None else format(number, "f") for number in column.to_pylist()]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _json_moments(column, kind)
    if pa.types.is_time(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_duration(kind):
        return list(column.view(pa.int64()).to_pylist())
    if is_text(kind):
        texts = column.cast(pa.large_binary()).to_pylist()
        # Only refused rows have bytes that are not UTF-8.
        return [None if text is None else text.decode(errors="backslashreplace") for text in texts]
    if any(is_bytes(kind) for is_bytes in _BINARY):
        return [None if v is None else base64.b64encode(v).decode() for v in column.to_pylist()]
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return list(column.to_pylist())
    raise InputError(f"JSON has no values for {kind}")


_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days from 1970."""


def _json_moments(column: pa.Array, kind: pa.DataType) -> list[Any]:
    """Dates and timestamps in ISO 8601; as Arrow's numbers if the year does not have four digits."""
    import pyarrow.compute as pc

    zone, a_day = "", 1
    if pa.types.is_date(kind):
        column = column.cast(pa.date32(), safe=False)
        numbers = column.view(pa.int32())
    else:
        numbers, a_day, zone = column.view(pa.int64()), _A_DAY[kind.unit], "Z" if kind.tz else ""
        # Without its zone, because its rules may be unknown here: the number counts from 1970 in UTC.
        column = numbers.view(pa.timestamp(kind.unit))
    texts = pc.binary_join_element_wise(pc.replace_substring(column.cast(pa.string()), " ", "T"), zone, "")
    days = numbers.fill_null(0).to_numpy() // a_day
    return [
        text if _FIRST_DAY <= day <= _LAST_DAY else number
        for text, number, day in zip(texts.to_pylist(), numbers.to_pylist(), days.tolist(), strict=True)
    ]


def _valid(column: pa.Array) -> np.ndarray:
    return column.is_valid().to_numpy(zero_copy_only=False)


def _doubled(names: list[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def _plain(column: pa.Array) -> tuple[pa.Array, pa.DataType]:
    """A column without dictionary and extension type, with maps as lists of entries; and its type."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(column.storage)
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if pa.types.is_map(kind):
        entry = pa.struct([pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)])
        column = column.cast(pa.large_list(entry))
    return column, column.type


def _items(column: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Lengths of n lists, int64 (n,), 0 for a null, and the items of all lists end to end."""
    import pyarrow.compute as pc

    lengths = pc.list_value_length(column).cast(pa.int64()).fill_null(0).to_numpy()
    if pa.types.is_fixed_size_list(column.type):
        starts = np.arange(column.offset, column.offset + len(column)) * column.type.list_size
    else:
        starts = column.offsets.to_numpy()[: len(column)].astype(np.int64)
    # Arrow's own `flatten` lacks types.
    shifts = starts - _ends(lengths)[:-1]
    return lengths, column.values.take(plain_array(np.repeat(shifts, lengths) + np.arange(lengths.sum())))


def _ends(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])
