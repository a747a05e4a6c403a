"""Fields by name, in objects and in Arrow columns.

A field is given by its own name, or by its path through objects (structs and maps in Arrow): `meta.pile_set_name` is
the field `pile_set_name` of the field `meta`. A field whose own name contains the dots takes precedence. If a parent is
missing, null or not an object, the record lacks the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa


def value_at(record: Mapping[str, Any], field: str, missing: Any = None) -> Any:
    """A field's value in an object; `missing` if the object lacks it."""
    if field in record:
        return record[field]
    for parent, child in ways(field):
        inner = record.get(parent)
        value = value_at(inner, child, missing) if isinstance(inner, Mapping) else missing
        if value is not missing:
            return value
    return missing


def fields_of(record: Mapping[str, Any], depth: int = 4) -> Iterator[tuple[str, Any]]:
    """The fields of an object with their values, by name; those inside objects by their paths, to a depth."""
    for name, value in record.items():
        if isinstance(value, dict) and value and depth > 1:
            yield from ((f"{name}.{inner}", own) for inner, own in fields_of(value, depth - 1))
        else:
            yield name, value


def column_at(rows: pa.Table | pa.RecordBatch | pa.StructArray, field: str, inside: str = "") -> Any:
    """A field's column: a pa.ChunkedArray from a table, else a pa.Array; None if there is none. inside: a prefix of
    field names, for messages.

    Raises:
        InputError: several columns have this name.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_struct = isinstance(rows, pa.Array | pa.ChunkedArray)
    names = [child.name for child in (rows.type if is_struct else rows.schema)]

    def column(name: str) -> Any:
        if names.count(name) > 1:
            raise InputError(f"several columns are called {inside + name!r}; rename all but one")
        return pc.struct_field(rows, [names.index(name)]) if is_struct else rows.column(names.index(name))

    if field in names:
        return column(field)
    for parent, child in ways(field):
        kind = (inner := column(parent)).type if parent in names else pa.null()
        if pa.types.is_map(kind) and kind.key_type in (pa.string(), pa.large_string()):
            return pc.map_lookup(inner, pa.scalar(child, kind.key_type), "last")
        if pa.types.is_struct(kind):
            nested = column_at(inner, child, f"{inside}{parent}.")
            if nested is not None:
                return nested
    return None


def columns_of(fields: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns among `names` that hold at least one of the fields."""
    return [name for name in names if any(f"{field}.".startswith(f"{name}.") for field in fields)]


def ways(field: str) -> Iterator[tuple[str, str]]:
    """Splits a dotted name into (parent, field inside it), at each of its dots in turn."""
    return ((field[:at], field[at + 1 :]) for at, letter in enumerate(field) if letter == ".")
