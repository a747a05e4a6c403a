"""Arrow columns of any type that a Parquet file can have, for Hypothesis.

A `Kind` is a type and its values, which are plain whole numbers, bytes and tuples, so that two are equal exactly if
Arrow holds the same: 0.0 and -0.0 are two, and so are two NaNs of other bits.
"""

from __future__ import annotations

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
_EXACT = Context(prec=100)


@dataclass(frozen=True)
class Kind:
    """A type; a strategy of its values, null being None; and values as an array."""

    type: pa.DataType
    values: st.SearchStrategy[Any]
    build: Callable[[Values], pa.Array]

    def __repr__(self) -> str:
        return str(self.type)


def _numbers(of: pa.DataType, low: int | None = None, high: int | None = None) -> Kind:
    """Whole numbers, or what Arrow holds as such."""
    raw = of if pa.types.is_integer(of) else pa.int32() if of.bit_width == 32 else pa.int64()
    signed = not str(raw).startswith("u")
    low = -(2 ** (of.bit_width - 1)) * signed if low is None else low
    high = 2 ** (of.bit_width - signed) - 1 if high is None else high
    edges = st.sampled_from([low, high, 0, 1, high - 1])
    return Kind(of, st.none() | edges | st.integers(low, high), lambda values: pa.array(values, raw).view(of))


def _times(of: pa.DataType) -> Kind:
    per_second = {"ms": 10**3, "us": 10**6, "ns": 10**9}[of.unit]
    return _numbers(of, 0, 86_400 * per_second - 1)


def _floats(of: pa.DataType) -> Kind:
    bits, float_type = np.dtype(f"u{of.bit_width // 8}"), np.dtype(f"f{of.bit_width // 8}")

    def build(values: Values) -> pa.Array:
        held = np.array([value or 0 for value in values], bits).view(float_type)
        return pa.array(held, of, mask=np.array([value is None for value in values], bool))

    special = [0.0, -0.0, np.nan, np.inf, -np.inf, 0.1, 1e-5]
    chosen = [int(np.array(value, float_type).view(bits)) for value in special]
    some_nan = int(np.array(np.nan, float_type).view(bits)) | 1
    return Kind(of, st.sampled_from([None, *chosen, some_nan]) | st.integers(0, 2**of.bit_width - 1), build)


def _decimals(of: pa.DataType) -> Kind:
    def build(values: Values) -> pa.Array:
        return pa.array([None if v is None else Decimal(v).scaleb(-of.scale, _EXACT) for v in values], of)

    largest = 10**of.precision - 1
    return Kind(
        of, st.none() | st.sampled_from([largest, -largest, 0]) | st.integers(-largest, largest), build
    )


def _bytes(of: pa.DataType, size: int | None = None) -> Kind:
    held = st.binary(min_size=size or 0, max_size=size or 3)
    raw = pa.binary() if size is None else of
    return Kind(of, st.none() | held, lambda values: pa.array(values, raw).cast(of))


def _texts(of: pa.DataType) -> Kind:
    def build(values: Values) -> pa.Array:
        array = pa.array([None if value is None else value.decode() for value in values], pa.string())
        return array.dictionary_encode() if pa.types.is_dictionary(of) else array.cast(of)

    texts = st.text(max_size=3).filter(lambda text: text.isprintable() or text == "\0")
    return Kind(of, st.none() | texts.map(str.encode), build)


def _extension(of: pa.DataType, storage: Kind) -> Kind:
    return Kind(of, storage.values, lambda values: pa.ExtensionArray.from_storage(of, storage.build(values)))


LEAVES = [
    Kind(pa.null(), st.none(), lambda values: pa.nulls(len(values))),
    Kind(pa.bool_(), st.sampled_from([None, True, False]), lambda values: pa.array(values, pa.bool_())),
    *map(_numbers, (pa.int8(), pa.int64(), pa.uint16(), pa.uint64())),
    *map(_floats, (pa.float16(), pa.float32(), pa.float64())),
    *map(_decimals, (pa.decimal32(5, 2), pa.decimal64(12, 12), pa.decimal128(30), pa.decimal256(60, 20))),
    _numbers(pa.date32()),
    *map(_times, (pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    *(_numbers(pa.timestamp(unit)) for unit in ("ms", "us", "ns")),
    _numbers(pa.timestamp("us", "Europe/Zurich")),
    _numbers(pa.timestamp("ns", "Mars/Base")),
    *(_numbers(pa.duration(unit)) for unit in ("s", "ns")),
    *map(_bytes, (pa.binary(), pa.large_binary())),
    _bytes(pa.binary(2), 2),
    *map(_texts, (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()))),
    _extension(pa.uuid(), _bytes(pa.binary(16), 16)),
    _extension(pa.json_(), _texts(pa.string())),
]


def _mask(values: Values) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _lists(make: Callable[[pa.DataType], pa.DataType], inner: Kind, size: int | None = None) -> Kind:
    of = make(inner.type)
    held = st.lists(inner.values, min_size=size or 0, max_size=2 if size is None else size).map(tuple)

    def build(values: Values) -> pa.Array:
        nothing = (None,) * (size or 0)
        flat = inner.build([item for value in values for item in (nothing if value is None else value)])
        ends = np.cumsum([0, *(len(value or ()) for value in values)])
        if size is not None:
            return pa.FixedSizeListArray.from_arrays(flat, type=of, mask=_mask(values))
        if pa.types.is_list_view(of):
            sizes, starts = pa.array(np.diff(ends), pa.int32()), pa.array(ends[:-1], pa.int32())
            return pa.ListViewArray.from_arrays(starts, sizes, flat, mask=_mask(values))
        large = pa.types.is_large_list(of)
        array, offset = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
        return array.from_arrays(pa.array(ends, offset), flat, mask=_mask(values))

    return Kind(of, st.none() | held, build)


def _structs(inner: list[Kind]) -> Kind:
    of = pa.struct([pa.field(f"f{number}", kind.type) for number, kind in enumerate(inner)])

    def build(values: Values) -> pa.Array:
        children = [
            kind.build([None if v is None else v[at] for v in values]) for at, kind in enumerate(inner)
        ]
        return pa.StructArray.from_arrays(children, fields=list(of), mask=_mask(values))

    return Kind(of, st.none() | st.tuples(*(kind.values for kind in inner)), build)


def _maps(inner: Kind) -> Kind:
    keys = _texts(pa.string())
    held = st.lists(st.tuples(keys.values.filter(lambda key: key is not None), inner.values), max_size=2)

    def build(values: Values) -> pa.Array:
        flat = [entry for value in values for entry in value or ()]
        ends = pa.array(np.cumsum([0, *(len(value or ()) for value in values)]), pa.int32())
        parts = keys.build([key for key, _ in flat]), inner.build([value for _, value in flat])
        return pa.MapArray.from_arrays(ends, *parts, mask=_mask(values))

    return Kind(pa.map_(pa.string(), inner.type), st.none() | held.map(tuple), build)


def _nested(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return st.one_of(
        inner.map(lambda kind: _lists(pa.list_, kind)),
        inner.map(lambda kind: _lists(pa.large_list, kind)),
        inner.map(lambda kind: _lists(lambda of: pa.list_(of, 2), kind, 2)),
        st.lists(inner, min_size=1, max_size=3).map(_structs),
        inner.map(_maps),
    )


views = st.sampled_from([_texts(pa.string_view()), _bytes(pa.binary_view())])
kinds = st.one_of(
    st.recursive(st.sampled_from(LEAVES), _nested, max_leaves=4),
    # No deeper: Arrow cannot take rows of lists of them.
    views,
    st.sampled_from(LEAVES).map(lambda kind: _lists(pa.list_view, kind)),
)


def parquet(table: pa.Table, row_group_size: int = 1024) -> bytes:
    """A table as a Parquet file; in one row group where Arrow can write or read back its types in no other way."""
    whole = any(word in str(table.schema) for word in ("dictionary", "view"))
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=1024 if whole else row_group_size)
    return file.getvalue()
