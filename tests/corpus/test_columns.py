"""Columns of fields: their type is that of the records asked for, whatever fragments these came in."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.fields import column_at, value_at
from dagster_divorder.core.order.traits import as_category
from dagster_divorder.corpus.columns import extract, settle
from dagster_divorder.errors import InputError
from dagster_divorder.stages.corpus.ids import extract_ids
from tests.conftest import examples

values = (
    st.none()
    | st.integers(-3, 3)
    | st.floats(-2, 2)
    | st.sampled_from(["a", "1", True, [1], {"b": 2, "a": 1}])
)


def column(values: list[Any]) -> pa.ChunkedArray:
    # orjson writes no whole numbers beyond 64 bits.
    lines = [json.dumps({"x": value}).encode() for value in values]
    return extract(pa.chunked_array([lines], type=pa.large_binary()), ["x"]).column("x")


ALIKE = [
    ([1, 2.5, None], [1.0, 2.5, None]),
    (["a", None, "1"], ["a", None, "1"]),
    ([1, 1.0, "1", 0.1], ["1", "1", "1", "0.1"]),
    ([123456789012, "123456789012", -0.0], ["123456789012", "123456789012", "0"]),
    ([1, 1 << 64], [1.0, float(1 << 64)]),  # beyond 64 bits
    ([0.5, (1 << 53) + 1], [0.5, float(1 << 53)]),
    ([1e300, 1.5], [1e300, 1.5]),
    ([(1 << 53) + 1, "a", (1 << 53) + 2.0], ["9007199254740993", "a", "9007199254740994"]),
    ([True, {"b": 2, "a": [1]}, []], ["true", '{"a":[1],"b":2}', "[]"]),
    ([[1], 1], ["[1]", "1"]),
    ([None, None], [None, None]),
]
WHOLE: list[tuple[list[Any], list[str | None]]] = [
    ([1, 1.0, None, 123456789012], ["1", "1", None, "123456789012"]),
    # float64 would round them: every digit stays, up to 64 bits.
    ([1, (1 << 53) + 1, None], ["1", "9007199254740993", None]),
    ([(1 << 64) - 1, (1 << 64) - 2], ["18446744073709551615", "18446744073709551614"]),
]


@pytest.mark.parametrize(
    ("held", "settled", "categories"),
    [*((held, settled, settled) for held, settled in ALIKE), *((held, held, names) for held, names in WHOLE)],
)
def test_numbers_stay_numbers_until_one_value_is_none_and_whole_ones_can_be_categories(
    held: list[Any], settled: list[Any], categories: list[Any]
) -> None:
    assert settle(column(held)).to_pylist() == settled
    assert settle(column(held), categories=True).to_pylist() == categories


@settings(deadline=None, max_examples=examples(25))
@given(held=st.lists(values, min_size=1, max_size=12), cuts=st.sets(st.integers(1, 11)), data=st.data())
def test_fragments_and_records_left_out_do_not_matter(
    held: list[Any], cuts: set[int], data: st.DataObject
) -> None:
    used = data.draw(st.lists(st.integers(0, len(held) - 1), min_size=1))
    bounds = sorted({0, len(held), *(cut for cut in cuts if cut < len(held))})
    tables = [pa.table({"x": column(held[low:high])}) for low, high in pairwise(bounds)]
    parts = pa.concat_tables(tables).column("x")
    expected = settle(column([held[at] for at in used]))
    found = settle(parts.take(pa.array(used)))
    assert found.type == expected.type
    assert found.to_pylist() == expected.to_pylist()


@pytest.mark.parametrize(
    ("record", "value"),
    [
        ({"a": {"b": {"c": 1}}}, 1),
        ({"a.b.c": 2, "a": {"b": {"c": 1}}}, 2),
        ({"a.b.c": None, "a": {"b": {"c": 1}}}, None),
        ({"a.b": {"c": 3}}, 3),
        ({"a": {"b.c": 4}}, 4),
        ({"a": {"x": 0}, "a.b": {"c": 5}}, 5),
        ({"a": {"b": [{"c": 1}]}}, "none"),
        ({"a": "b.c"}, "none"),
        ({"a": None}, "none"),
        ({"c": 1}, "none"),
    ],
)
def test_a_field_in_objects_is_named_by_the_way_to_it(record: dict[str, Any], value: Any) -> None:
    assert value_at(record, "a.b.c", "none") == value
    lines = pa.chunked_array([[orjson.dumps(record)]], type=pa.large_binary())
    known = None if value == "none" else value
    assert settle(extract(lines, ["a.b.c"]).column(0)).to_pylist() == [known]
    assert extract_ids(lines, "a.b.c").column("number").to_pylist() == [known]
    rows = pa.Table.from_pylist([record]).to_struct_array()
    assert extract(rows, ["a.b.c"]).column(0).to_pylist() == [known]
    assert extract_ids(rows, "a.b.c").column("number").to_pylist() == [known]


def test_fields_inside_structs() -> None:
    """Null where the struct is null; two of one name are an error."""
    inner = pa.StructArray.from_arrays(
        [pa.array(["x", "y", "z"])], ["b"], mask=pa.array([False, True, False])
    )
    rows = pa.StructArray.from_arrays([inner], ["a"], mask=pa.array([False, False, True]))
    table = pa.chunked_array([rows, rows.slice(1)])
    assert extract(table, ["a.b"]).column(0).to_pylist() == ["x", None, None, None, None]
    doubled = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    with pytest.raises(InputError, match=r"several columns are called 'a\.x'"):
        column_at(pa.table({"a": doubled}), "a.x")


@pytest.mark.parametrize(
    ("values", "categories"),
    [
        (pa.array([float(1 << 53), float((1 << 53) + 2)]), ["9007199254740992", "9007199254740994"]),
        (pa.array([float(1 << 63), 1.0]), [float(1 << 63), 1.0]),
        (pa.array([float("inf"), 1.0]), [float("inf"), 1.0]),
        (pa.array(range(1000)), [str(number) for number in range(1000)]),
        (pa.array(range(1001)), [*range(1001)]),
        *(
            (pa.array([3, None, 3]).cast(kind), ["3", None, "3"])
            for kind in (pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(19, 0))
        ),
    ],
)
def test_at_most_a_thousand_whole_numbers_of_any_type_are_categories(
    values: pa.Array, categories: list[Any]
) -> None:
    assert as_category(pa.chunked_array([values])).to_pylist() == categories
