"""Arrow columns of any type that a Parquet file can have, for Hypothesis: types, values, and what JSON makes of them.

A `Kind` is a type and its values, which are plain whole numbers, bytes and tuples, so that two are equal exactly if
Arrow holds the same: 0.0 and -0.0 are two, and so are two NaNs of other bits.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

Values = list[Any]


@dataclass(frozen=True)
class Kind:
    """A type; a strategy of its values, null being None; values as an array; and a value from its JSON form."""

    type: pa.DataType
    values: st.SearchStrategy[Any]
    build: Callable[[Values], pa.Array]
    of_json: Callable[[Any], Any]

    def __repr__(self) -> str:
        return str(self.type)


def _numbers(of: pa.DataType, low: int, high: int, of_json: Callable[[Any], Any] = int) -> Kind:
    """Whole numbers, or what Arrow holds as such."""
    raw = pa.int32() if of.bit_width == 32 and not pa.types.is_integer(of) else pa.int64()
    edges = st.sampled_from([low, high, 0, 1, high - 1])
    if pa.types.is_integer(of):
        raw = of
    return Kind(
        of,
        st.none() | edges | st.integers(low, high),
        lambda values: pa.array(values, raw).view(of),
        lambda value: None if value is None else of_json(value),
    )


def _instants(unit: str, zone: str | None = None, size: int = 1 << 63) -> Kind:
    def of_json(value: int | str) -> int:
        if isinstance(value, int):
            return value
        assert value.endswith("Z") == bool(zone)
        moment = pa.array([value.removesuffix("Z")]).cast(pa.timestamp(unit))
        return moment.view(pa.int64())[0].as_py()

    return _numbers(pa.timestamp(unit, zone), -size, size - 1, of_json)


def _times(of: pa.DataType) -> Kind:
    per_second = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[of.unit]

    def of_json(value: str) -> int:
        hours, minutes, seconds = value.split(":")
        return int((Decimal(hours) * 3600 + Decimal(minutes) * 60 + Decimal(seconds)) * per_second)

    return _numbers(of, 0, 86_400 * per_second - 1, of_json)


def _date_of_json(value: int | str) -> int:
    if isinstance(value, int):
        return value
    return pa.array([value]).cast(pa.date32()).view(pa.int32())[0].as_py()


def _floats(of: pa.DataType) -> Kind:
    bits = np.dtype(f"u{of.bit_width // 8}")
    float_type = np.dtype(f"f{of.bit_width // 8}")

    def of_json(value: float | str | None) -> Any:
        if value is None:
            return None
        found = np.array(float({"Infinity": "inf", "-Infinity": "-inf"}.get(value, value)), float_type)  # type: ignore[call-overload]
        return int(found.view(bits))

    def build(values: Values) -> pa.Array:
        held = np.array([value or 0 for value in values], bits).view(float_type)
        return pa.array(held, of, mask=np.array([value is None for value in values], bool))

    special = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.1, 1e-5]
    chosen = [int(np.array(value, float_type).view(bits)) for value in special]
    some_nan = int(np.array(np.nan, float_type).view(bits)) | 1
    values = st.sampled_from([None, *chosen, some_nan]) | st.integers(0, 2**of.bit_width - 1)
    return Kind(of, values, build, of_json)


def _decimals(of: pa.DataType) -> Kind:
    def build(values: Values) -> pa.Array:
        scaled = [None if v is None else Decimal(v).scaleb(-of.scale, _EXACT) for v in values]
        return pa.array(scaled, of)

    largest = 10**of.precision - 1
    return Kind(
        of,
        st.none() | st.sampled_from([largest, -largest, 0]) | st.integers(-largest, largest),
        build,
        lambda value: None if value is None else int(Decimal(value).scaleb(of.scale, _EXACT)),
    )


def _bytes(of: pa.DataType, size: int | None = None) -> Kind:
    held = st.binary(max_size=3) if size is None else st.binary(min_size=size, max_size=size)
    return Kind(
        of,
        st.none() | held,
        lambda values: pa.array(values, pa.binary() if size is None else of).cast(of),
        lambda value: None if value is None else base64.b64decode(value, validate=True),
    )


def _texts(of: pa.DataType) -> Kind:
    def build(values: Values) -> pa.Array:
        array = pa.array([None if value is None else value.decode() for value in values], pa.string())
        return array.dictionary_encode() if pa.types.is_dictionary(of) else array.cast(of)

    texts = st.text(max_size=3).filter(lambda text: text.isprintable() or text == "\0")
    return Kind(
        of,
        st.none() | texts.map(str.encode),
        build,
        lambda value: None if value is None else value.encode(),
    )


def _extension(of: pa.DataType, storage: Kind) -> Kind:
    return Kind(
        of,
        storage.values,
        lambda values: pa.ExtensionArray.from_storage(of, storage.build(values)),
        storage.of_json,
    )


_EXACT = Context(prec=100)
_BOOL = Kind(
    pa.bool_(), st.sampled_from([None, True, False]), lambda values: pa.array(values, pa.bool_()), lambda v: v
)
LEAVES = [
    Kind(pa.null(), st.none(), lambda values: pa.nulls(len(values)), lambda v: v),
    _BOOL,
    *(
        _numbers(of, -(2 ** (of.bit_width - 1)), 2 ** (of.bit_width - 1) - 1)
        for of in (pa.int8(), pa.int64())
    ),
    *(_numbers(of, 0, 2**of.bit_width - 1) for of in (pa.uint16(), pa.uint64())),
    *(_floats(of) for of in (pa.float16(), pa.float32(), pa.float64())),
    *(
        _decimals(of)
        for of in (pa.decimal32(5, 2), pa.decimal64(12, 12), pa.decimal128(30), pa.decimal256(60, 20))
    ),
    _numbers(pa.date32(), -(2**31), 2**31 - 1, _date_of_json),
    *(_times(of) for of in (pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    *(_instants(unit) for unit in ("ms", "us", "ns")),
    _instants("us", "Europe/Zurich"),
    _instants("ns", "Mars/Base"),
    *(_numbers(pa.duration(unit), -(2**63), 2**63 - 1) for unit in ("s", "ns")),
    *(_bytes(of) for of in (pa.binary(), pa.large_binary())),
    _bytes(pa.binary(2), 2),
    *(_texts(of) for of in (pa.string(), pa.large_string())),
    _texts(pa.dictionary(pa.int32(), pa.string())),
    _extension(pa.uuid(), _bytes(pa.binary(16), 16)),
    _extension(pa.json_(), _texts(pa.string())),
]


def _lists(make: Callable[[pa.DataType], pa.DataType], inner: Kind, size: int | None = None) -> Kind:
    of = make(inner.type)
    held = st.lists(inner.values, min_size=size or 0, max_size=2 if size is None else size).map(tuple)

    def build(values: Values) -> pa.Array:
        if size is not None:
            flat = [item for value in values for item in (value if value is not None else (None,) * size)]
            mask = pa.array([value is None for value in values], pa.bool_())
            return pa.FixedSizeListArray.from_arrays(inner.build(flat), type=of, mask=mask)
        flat = [item for value in values for item in value or ()]
        ends = np.cumsum([0, *(len(value or ()) for value in values)])
        mask = pa.array([value is None for value in values], pa.bool_())
        if pa.types.is_list_view(of):
            sizes = pa.array(np.diff(ends), pa.int32())
            starts = pa.array(ends[:-1], pa.int32())
            return pa.ListViewArray.from_arrays(starts, sizes, inner.build(flat), mask=mask)
        large = pa.types.is_large_list(of)
        array, offset = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
        return array.from_arrays(pa.array(ends, offset), inner.build(flat), mask=mask)

    def of_json(value: list[Any] | None) -> Any:
        return None if value is None else tuple(inner.of_json(item) for item in value)

    return Kind(of, st.none() | held, build, of_json)


def _structs(inner: list[Kind]) -> Kind:
    names = [f"f{number}" for number in range(len(inner))]
    of = pa.struct([pa.field(name, kind.type) for name, kind in zip(names, inner, strict=True)])

    def build(values: Values) -> pa.Array:
        children = [
            kind.build([None if v is None else v[at] for v in values]) for at, kind in enumerate(inner)
        ]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(of), mask=mask)

    def of_json(value: dict[str, Any] | None) -> Any:
        if value is None:
            return None
        assert list(value) == names
        return tuple(kind.of_json(value[name]) for name, kind in zip(names, inner, strict=True))

    return Kind(of, st.none() | st.tuples(*(kind.values for kind in inner)), build, of_json)


def _maps(inner: Kind) -> Kind:
    keys = _texts(pa.string())
    held = st.lists(st.tuples(keys.values.filter(lambda key: key is not None), inner.values), max_size=2)

    def build(values: Values) -> pa.Array:
        flat = [entry for value in values for entry in value or ()]
        ends = pa.array(np.cumsum([0, *(len(value or ()) for value in values)]), pa.int32())
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.MapArray.from_arrays(
            ends, keys.build([k for k, _ in flat]), inner.build([v for _, v in flat]), mask=mask
        )

    def of_json(value: list[dict[str, Any]] | None) -> Any:
        if value is None:
            return None
        return tuple((keys.of_json(entry["key"]), inner.of_json(entry["value"])) for entry in value)

    return Kind(pa.map_(pa.string(), inner.type), st.none() | held.map(tuple), build, of_json)


def _nested(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    # Arrow reads back too few values of lists of nulls.
    items = inner.filter(lambda kind: "null" not in str(kind.type).replace("not null", ""))
    return st.one_of(
        items.map(lambda kind: _lists(pa.list_, kind)),
        items.map(lambda kind: _lists(pa.large_list, kind)),
        items.map(lambda kind: _lists(lambda of: pa.list_(of, 2), kind, 2)),
        st.lists(inner, min_size=1, max_size=3).map(_structs),
        items.map(_maps),
    )


views = st.sampled_from([_texts(pa.string_view()), _bytes(pa.binary_view())])
kinds = st.one_of(
    st.recursive(st.sampled_from(LEAVES), _nested, max_leaves=4),
    # No deeper: Arrow itself writes few of them.
    views,
    views.map(lambda kind: _lists(pa.list_, kind)),
    views.map(lambda kind: _structs([kind, kind])),
    st.sampled_from(LEAVES[1:]).map(lambda kind: _lists(pa.list_view, kind)),
)


def parquet(table: pa.Table, row_group_size: int = 1024) -> bytes:
    """A table as a Parquet file; in one row group where Arrow can write or read back its types in no other way."""
    whole = any(word in str(table.schema) for word in ("dictionary", "view"))
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=1024 if whole else row_group_size)
    return file.getvalue()
