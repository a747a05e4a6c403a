"""Rows of Parquet: their bytes tell any two apart that differ, and their JSON gives the values back."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_divorder.corpus.inputs import read_rows
from dagster_divorder.corpus.parquet_rows import check_columns, json_lines, row_as_json, row_bytes
from dagster_divorder.errors import InputError
from tests.arrow_types import LEAVES, Kind, kinds, parquet
from tests.conftest import examples


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[Kind], list[tuple[Any, ...]]]:
    """Types of columns, and rows of which some are the same."""
    chosen = draw(st.lists(kinds, min_size=1, max_size=3))
    different = draw(st.lists(st.tuples(*(kind.values for kind in chosen)), min_size=1, max_size=5))
    return chosen, draw(st.lists(st.sampled_from(different), min_size=1, max_size=9))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows") / "rows.parquet"


@settings(deadline=None, max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(drawn=columns(), row_group=st.integers(1, 4), data=st.data())
def test_rows_have_equal_bytes_and_json_exactly_if_they_are_equal(
    file: Path, drawn: tuple[list[Kind], list[tuple[Any, ...]]], row_group: int, data: st.DataObject
) -> None:
    chosen, rows = drawn
    arrays = [kind.build([row[at] for row in rows]) for at, kind in enumerate(chosen)]
    for array in arrays:
        array.validate(full=True)
    table = pa.Table.from_arrays(arrays, [f"c{at}" for at in range(len(chosen))])
    file.write_bytes(parquet(table, row_group))
    (block,) = read_rows(file, None)
    check_columns(block.content.schema, as_json=True)
    lines = json_lines(pa.StructArray.from_arrays(block.content.columns, fields=list(block.content.schema)))
    found = row_bytes(block.content)
    assert len(found) == len(lines) == len(rows)
    for at, row in enumerate(rows):
        for other_at, other in enumerate(rows):
            # The payload of a NaN is the one thing that JSON does not keep.
            same = row == other or (b"NaN" in lines[at] and lines[at] == lines[other_at])
            assert (found[at] == found[other_at]) == same
            assert lines[at] != lines[other_at] or same
    # However the rows come: cut, picked, in another order, beside others.
    low = data.draw(st.integers(0, len(rows)))
    assert row_bytes(block.content.slice(low, 3)) == found[low : low + 3]
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    assert row_bytes(block.content.take(pa.array(picked, pa.int64()))) == [found[at] for at in picked]


def instants(unit: str, zone: str | None, *numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int64()).view(pa.timestamp(unit, zone))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([2**64 - 1, None], pa.uint64()), [2**64 - 1, None]),
        (
            pa.array([0.1, -0.0, math.nan, math.inf, -math.inf]),
            [0.1, -0.0, "NaN", "Infinity", "-Infinity"],
        ),
        (pa.array([np.float16(0.5)]), [0.5]),
        (pa.array([Decimal("-1.50"), Decimal("1E+2")], pa.decimal128(9, 2)), ["-1.50", "100.00"]),
        (pa.array([b"\xff", b""], pa.binary()), ["/w==", ""]),
        (
            pa.array([0, -719_163, 2_932_896], pa.int32()).view(pa.date32()),
            ["1970-01-01", -719_163, "9999-12-31"],
        ),
        (instants("ns", "Mars/Base", 1), ["1970-01-01T00:00:00.000000001Z"]),
        (instants("ms", None, 1, 253_402_300_800_000), ["1970-01-01T00:00:00.001", 253_402_300_800_000]),
        (pa.array([86_399_000_001], pa.int64()).view(pa.time64("us")), ["23:59:59.000001"]),
        (pa.array([1500], pa.int64()).view(pa.duration("ms")), [1500]),
        (pa.array([[1, None], None, []]), [[1, None], None, []]),
        (pa.array([{"a": 1}, None]), [{"a": 1}, None]),
        (
            pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
            [[{"key": "a", "value": 1}], None],
        ),
        (pa.array(["x", None]).dictionary_encode(), ["x", None]),
        (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"\0" * 16], pa.binary(16))), ["A" * 22 + "=="]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_the_json_of_every_type(column: pa.Array, values: list[Any]) -> None:
    rows = pa.StructArray.from_arrays([column], ["x"])
    assert [repr(json.loads(line)["x"]) for line in json_lines(rows)] == list(map(repr, values))


def test_the_names_and_types_of_columns_count_but_not_what_arrow_does_not_compare() -> None:
    numbers = pa.array([[1]], pa.list_(pa.field("item", pa.int32())))
    named = pa.array([[1]], pa.list_(pa.field("element", pa.int32())))
    assert row_bytes(pa.record_batch({"x": numbers})) == row_bytes(pa.record_batch({"x": named}))
    others = [pa.record_batch({"y": numbers}), pa.record_batch({"x": pa.array([[1]], pa.list_(pa.uint32()))})]
    strict = pa.record_batch([numbers], pa.schema([pa.field("x", numbers.type, nullable=False)]))
    for other in (*others, strict):
        assert row_bytes(other) != row_bytes(pa.record_batch({"x": numbers}))


def test_what_lies_under_a_null_does_not_matter() -> None:
    mask = np.array([True, True])
    inner = pa.StructArray.from_arrays([pa.array([1, 2])], ["a"], mask=pa.array(mask))
    texts = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pa.array(["a", "b"]), mask=pa.array(mask))
    hidden = pa.array(np.array([0.5, np.nan]), mask=mask)
    one, two = row_bytes(pa.record_batch({"x": inner, "y": texts, "z": hidden}))
    assert one == two


def test_columns_that_have_no_json_are_named() -> None:
    doubled = pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())])
    for field, said in (
        (pa.field("x", doubled), "column 'x' of type struct<a: int8, a: int8>.*several fields called 'a'"),
        (pa.field("x", pa.list_(doubled)), "column 'x'.*several fields called 'a'"),
    ):
        schema = pa.schema([pa.field("text", pa.string()), field])
        check_columns(schema, as_json=False)
        with pytest.raises(InputError, match=said):
            check_columns(schema, as_json=True)
    for kind in (pa.list_view(pa.string_view()), pa.list_(pa.string_view())):
        with pytest.raises(InputError, match="column 'odd' has type list"):
            check_columns(pa.schema([("odd", kind)]), as_json=False)
    with pytest.raises(InputError, match="several columns are called 'x'"):
        check_columns(pa.schema([("x", pa.int8()), ("x", pa.int8())]), as_json=True)


def test_a_refused_row_is_shown_whole() -> None:
    doubled = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    bad = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
    row = pa.RecordBatch.from_arrays([bad, doubled, pa.array([b"\0"])], ["text", "same", "same"])
    shown = json.loads(row_as_json(row), object_pairs_hook=list)
    assert shown == [
        ("text", r"caf\xe9"),
        ("same", "(it has several fields called 'a')"),
        ("same", "AA=="),
    ]


def test_the_page_of_json_forms_names_every_type() -> None:
    page = (Path(__file__).parents[2] / "docs/json_of_parquet.md").read_text()
    for kind in LEAVES:
        name = str(kind.type).split("(")[0].split("[")[0].split("<")[0]
        assert f"`{name}`" in page, name
