"""What a column of each type is balanced as."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dagster_divorder.core.order.traits import Codes, ManyCodes
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import open_table
from dagster_divorder.tables.traits import MOST_CATEGORIES, VectorCodes, trait_of


def trait(column: Any, **more: int) -> Any:
    table = column if isinstance(column, pa.Table) else {"c": column}
    return trait_of(open_table(table), "c", **{"bins": 4, "clusters": 3, "seed": 0} | more)


def named(of: Codes) -> list[str]:
    return [of.names[code] for code in of.codes]


def test_text_booleans_and_categoricals_are_categories() -> None:
    assert named(trait(["b", "a", None, "b"])) == ["b", "a", "(missing)", "b"]
    assert named(trait([True, False, None])) == ["true", "false", "(missing)"]
    assert named(trait(pd.Series(pd.Categorical([1.5, 2.5, None, 1.5])))) == [
        "1.5",
        "2.5",
        "(missing)",
        "1.5",
    ]
    assert named(trait(pl.Series(["x", "y", "x"], dtype=pl.Enum(["y", "x"])))) == ["x", "y", "x"]
    cut = trait(pd.cut(pd.Series(range(10)), [-1, 4, 9]))
    assert named(cut) == ["(-1, 4]"] * 5 + ["(4, 9]"] * 5
    # Chunks with dictionaries of their own.
    chunks = [pa.array(values).dictionary_encode() for values in (["a", "b"], ["c", "b"])]
    assert named(trait(pa.table({"c": pa.chunked_array(chunks)}))) == ["a", "b", "c", "b"]


def test_a_few_whole_numbers_are_categories_and_more_are_sizes() -> None:
    few = list(range(MOST_CATEGORIES)) * 2
    assert trait(few).edges is None and named(trait(few)) == [str(number) for number in few]
    assert trait([*few, MOST_CATEGORIES]).edges is not None
    # Lengths of a small table, each there once, name nothing.
    assert trait(list(range(20))).edges is not None
    # pandas makes floats of whole numbers with a gap.
    assert named(trait(pd.Series([1, 2, None, 2]))) == ["1", "2", "(missing)", "2"]
    assert named(trait([1, 2, None, 2])) == named(trait([1.0, 2.0, float("nan"), 2.0]))
    huge = [2**63 - 1, 2**63 - 1, -(2**63), 0]
    assert named(trait(huge)) == [str(number) for number in huge]
    # Ids that float64 cannot tell apart.
    assert np.bincount(trait([2**60 + number for number in range(100)]).codes).tolist() == [25] * 4


def test_other_numbers_are_quantile_bins() -> None:
    numbers = np.random.default_rng(0).permutation(100) / 7
    expected = np.argsort(np.argsort(numbers)) // 25
    for column in (numbers, numbers.astype(np.float32), [Decimal(str(number)) for number in numbers]):
        made = trait(column)
        assert made.codes.tolist() == expected.tolist() and made.names[-1] == "(missing)"
    assert trait([0.5, float("nan"), None, 1.5]).codes.tolist() == [0, 2, 2, 1]
    assert trait([-float("inf"), 0.5, 1.5, float("inf")]).codes.tolist() == [0, 1, 2, 3]


def test_dates_and_times_are_numbers_by_time() -> None:
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=int(day)) for day in (30, 1, 20, 10)]
    times = [datetime.datetime(2020, 1, 1, hour, tzinfo=datetime.UTC) for hour in (3, 0, 2, 1)]
    for column in (
        days,
        times,
        pd.Series(pd.to_datetime(days)),
        pd.Series(pd.to_timedelta([30, 1, 20, 10], unit="s")),
        pd.Series(pd.PeriodIndex(days, freq="D")),
        pl.Series([datetime.time(hour) for hour in (3, 0, 2, 1)]),
    ):
        assert trait(column).codes.tolist() == [3, 0, 2, 1]
    assert trait([*days, None], bins=2).codes.tolist() == [1, 0, 1, 0, 2]
    assert trait(np.array(["2020-01-02", "NaT", "2020-01-01"], "M8[s]"), bins=2).codes.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.string()),
        pa.large_list(pa.string_view()),
        pa.list_view(pa.dictionary(pa.int8(), pa.string())),
    ],
    ids=str,
)
def test_a_list_holds_several_values_and_none_is_one_too(kind: Any) -> None:
    lists = [["b", "a"], None, [], ["b", None], ["b"]]
    made = trait(pa.table({"c": pa.array(lists, kind)}))
    assert isinstance(made, ManyCodes)
    rows = np.split([made.names[code] for code in made.codes], made.indptr[1:-1])
    assert [row.tolist() for row in rows] == [
        ["b", "a"],
        ["(missing)"],
        ["(missing)"],
        ["b", "(missing)"],
        ["b"],
    ]


def test_lists_of_whole_numbers_are_categories_also_of_one_length() -> None:
    made = trait(np.array([[3, 1], [1, 2]]))
    assert [made.names[code] for code in made.codes] == ["3", "1", "1", "2"]
    full = pa.array([["a", "b"], None], pa.list_(pa.string(), 2))
    assert trait(pa.table({"c": full})).indptr.tolist() == [0, 2, 3]


def test_vectors_are_clusters_and_directions() -> None:
    random = np.random.default_rng(0)
    centres = 10 * np.eye(3, 5)
    which = random.integers(3, size=200)
    vectors = centres[which] + random.normal(size=(200, 5))
    made = trait(vectors)
    assert isinstance(made, VectorCodes) and len(made.names) == 3
    pairs = set(zip(which.tolist(), made.codes.tolist(), strict=True))
    assert len(pairs) == 3
    assert made.directions.shape == (200, 5)
    assert np.linalg.norm(made.directions, axis=1) == pytest.approx(1)
    for size in (2.0**100, 2.0**-100):
        assert trait(vectors * size).codes.tolist() == made.codes.tolist()
    # A row without a vector has a cluster of its own, and no direction.
    rows = [*vectors.astype(np.float32).tolist(), None]
    gap = trait(pa.table({"c": pa.array(rows, pa.list_(pa.float32(), 5))}))
    assert gap.codes[:200].tolist() == made.codes.tolist()
    assert gap.names[gap.codes[200]] == "(missing)" and not gap.directions[200].any()


def test_labels_of_a_dataset_have_their_names() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"c": datasets.ClassLabel(names=[f"class {at}" for at in range(100)])})
    labels = [*range(99, -1, -1), -1]
    dataset = (
        datasets.Dataset.from_dict({"c": labels}, features=features).select(range(101)).with_format("torch")
    )
    made = trait_of(open_table(dataset), "c", bins=4, clusters=3, seed=0)
    # A hundred classes are no sizes; -1 stands for no label.
    assert named(made) == [f"class {at}" for at in labels[:-1]] + ["(missing)"]


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        (pl.LazyFrame({"c": [1]}), r"polars.LazyFrame; .*table.collect\(\)"),
        (pl.Series([1]), r"to_frame\(\)"),
        (np.zeros((2, 2)), "name its columns"),
        (3, "table is int; expected a pandas or polars"),
        ("c.jsonl", "read the file first, such as pandas.read_json"),
        (Path("c.jsonl"), "table is a pathlib.Path; expected .*: read the file first"),
        ([1, 2], "row 0 of the table is int"),
        ([{"c": 1}, None], "row 1 of the table is NoneType"),
        ({"c": [1, 2], "d": [1]}, "have {'c': 2, 'd': 1} rows; expected the same number in each"),
        ({"c": "text"}, r"table\['c'\] is str; expected the values of a column"),
        (pd.DataFrame([[1, 2]], columns=["c", "c"]), "several columns are called 'c'"),
        ({"c": np.zeros((2, 2, 2))}, r"the shape \(2, 2, 2\)"),
        ({"c": [f"text {row}" for row in range(1500)]}, "column 'c' has 1,500 distinct values in 1,500 rows"),
    ],
    ids=lambda of: of[:30] if isinstance(of, str) else type(of).__name__,
)
def test_what_is_no_table_says_what_to_make_of_it(table: Any, remedy: str) -> None:
    with pytest.raises(InputError, match=remedy):
        trait_of(open_table(table), "c", bins=4, clusters=3, seed=0)


def test_what_a_dataset_cannot_be_ordered_as() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"c": [1, 2]})
    with pytest.raises(InputError, match=r'one of its splits: table\["train"\]'):
        open_table(datasets.DatasetDict({"train": dataset}))
    with pytest.raises(InputError, match=r"it is a stream, which divorder.balance\(table, by=...\) orders"):
        open_table(dataset.to_iterable_dataset())


def test_columns_are_named_as_people_see_them() -> None:
    levels = pd.MultiIndex.from_tuples([("meta", "source"), ("meta", "lang"), ("n", "")])
    frame = pd.DataFrame([["web", "en", 1]], columns=levels)
    assert open_table(frame).column("meta.source").to_pylist() == ["web"]
    assert open_table(pd.DataFrame([[5, 6]])).column("1").to_pylist() == [6]
    nested = [{"meta": {"a": {"b": 1}, "a.b": 2}, "meta.a.b": 3}, {"meta": None}]
    assert open_table(nested).column("meta.a.b").to_pylist() == [3, None]
    assert open_table(pa.Table.from_pylist(nested)).column("meta.a.b").to_pylist() == [3, None]
