"""One call: the order of any table, and its rows in that order; measures of it beside shuffles, of what it balanced
and of what it did not see."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dagster_divorder as divorder
from dagster_divorder.errors import InputError
from dagster_divorder.tables.comparison import LENGTH, SHARE_ERROR, TV
from dagster_divorder.tables.tokens import A_ROW
from tests.conftest import examples
from tests.tables.kinds import KINDS, as_rows, random_rows

BY = {"topic": 1, "label": 1, "score": 0.5, "tags": 2, "vector": 1, "meta.source": 1, "day": 1, "ok": 1}
ROWS = random_rows(60)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_has_the_same_order_and_comes_back_as_it_came(kind: str) -> None:
    expected = divorder.order(ROWS, BY, tokens="tokens")
    made = divorder.order(KINDS[kind](ROWS), BY, tokens="tokens")
    assert made.dtype == np.int64 and made.tolist() == expected.tolist()
    assert sorted(made.tolist()) == list(range(len(ROWS)))

    table = KINDS[kind](ROWS)
    back = divorder.reorder(table, BY, tokens="tokens")
    assert type(back) is (pa.Table if kind == "C stream" else type(table))
    numbers = [row["tokens"] for row in as_rows(back, list(ROWS[0]))]
    assert numbers == [ROWS[row]["tokens"] for row in expected]
    if isinstance(back, pd.DataFrame):
        assert back.index.tolist() == [table.index[row] for row in expected]


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "a": st.none() | st.sampled_from(["x", "y", "", "日本"]),
                "n": st.none() | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1]),
                "f": st.none() | st.floats(width=32),
                "l": st.none() | st.lists(st.none() | st.sampled_from("pq"), max_size=3),
                "t": st.integers(0, 1000),
            }
        ),
        max_size=40,
    ),
    st.sampled_from(["a", "n", "f", "l", ["a", "n"], ["l", "f", "a"]]),
    st.integers(0, 3),
)
def test_the_order_is_a_permutation_whatever_the_table(rows: Any, by: Any, seed: int) -> None:
    texts, whole = pa.string(), pa.int64()
    schema = {"a": texts, "n": whole, "f": pa.float64(), "l": pa.list_(texts), "t": whole}
    table = pa.Table.from_pylist(rows, pa.schema(schema))
    made = divorder.order(table, by, tokens="t", seed=seed, bins=3)
    assert sorted(made.tolist()) == list(range(len(rows)))
    assert made.tolist() == divorder.order(pl.from_arrow(table), by, tokens="t", seed=seed, bins=3).tolist()
    assert made.tolist() == divorder.order(rows, by, tokens="t", seed=seed, bins=3).tolist()


def test_weights_strategies_seeds_and_options_are_those_of_the_core() -> None:
    orders = [
        divorder.order(ROWS, by, tokens="tokens", **more).tolist()
        for by, more in (
            ("topic", {}),
            ("topic", {"seed": 1}),
            ({"topic": 1, "score": 5}, {}),
            (["topic", "score"], {}),
            ("topic", {"strategy": "f2", "f2_lambda": 0.5}),
            ("topic", {"strategy": "block_shuffle", "batch": 5}),
        )
    ]
    assert len({tuple(order) for order in orders}) == len(orders)


@pytest.mark.parametrize("gone", ["frozen", "score", "shape", "targets", "unit"])
def test_arguments_that_were_removed_are_refused_with_what_to_do(gone: str) -> None:
    with pytest.raises(InputError, match=f"{gone} is no longer an argument of an order: "):
        divorder.order(ROWS, "topic", tokens="tokens", **{gone: [0]})


def test_the_characters_of_conversations_count() -> None:
    lengths = [3, 900, 40, 900, 3, 40] * 20
    chats: list[list[dict[str, str]] | None] = [
        [
            {"role": "user", "content": "x" * (size // 3)},
            {"role": "tool", "content": "x" * (size - size // 3)},
        ]
        for size in lengths
    ]
    chats[0], sizes = None, [0, *(size + 8 for size in lengths[1:])]
    rows = [{"label": at % 7, "messages": chat} for at, chat in enumerate(chats)]
    with pytest.warns(UserWarning, match="its characters in 'messages'; name a column of lengths$"):
        made = divorder.order(rows, "label")
    # Beside an id and other lists of records, too, and after empty ones.
    beside = [{**row, "id": f"id {at}", "tools": [{"name": "x" * 999}]} for at, row in enumerate(rows)]
    empty = [{"label": 0, "id": f"empty {at}", "messages": []} for at in range(100)]
    with pytest.warns(UserWarning, match="its characters in 'messages'"):
        divorder.order([*empty, *beside], "label")
    with pytest.warns(UserWarning, match="its characters in 'messages'"):
        assert divorder.order(beside, "label").tolist() == made.tolist()
    lengthed = [{"label": at % 7, "n": size} for at, size in enumerate(sizes)]
    assert made.tolist() == divorder.order(lengthed, "label", tokens="n").tolist()


def test_without_lengths_characters_count_and_a_warning_says_so() -> None:
    rows = [{"id": f"{at:03}", "text": "é" * (1 + at % 7 * 40), "topic": "ab"[at % 2]} for at in range(40)]
    with pytest.warns(UserWarning, match="the length of a row is its characters in 'text'") as told:
        made = divorder.order(rows, "topic")
    assert len(told) == 1 and told[0].filename == __file__
    for row in rows:
        row["n"] = len(row["text"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made.tolist() == divorder.order(rows, "topic", tokens="n").tolist()
    # No text: every row is as long as any other.
    bare = [{"topic": row["topic"], "picture": object()} for row in rows]
    even = [{"topic": row["topic"], "n": A_ROW} for row in rows]
    with pytest.warns(UserWarning, match="holds text: all rows are equally"):
        made = divorder.order(bare, "topic")
    assert made.tolist() == divorder.order(even, "topic", tokens="n").tolist()


def test_all_rows_show_which_column_holds_the_text() -> None:
    """It is missing from the first row, or null in a hundred."""
    rows = [{"topic": "ab"[at % 2], "title": "t", "text": "w" * (1 + at % 7 * 40)} for at in range(200)]
    missing: Any = [{"title": "t", "topic": "a"}, *rows[1:]]
    nulls = pd.DataFrame([{**row, "text": None} for row in rows[:100]] + rows[100:], dtype=object)
    sizes = [len(row["text"]) for row in rows]
    for table, lengths in ((missing, [0, *sizes[1:]]), (nulls, [0] * 100 + sizes[100:])):
        expected = divorder.order({"topic": [*"ab"] * 100, "n": lengths}, "topic", tokens="n")
        with pytest.warns(UserWarning, match="its characters in 'text'"):
            assert divorder.order(table, "topic").tolist() == expected.tolist()
        with pytest.warns(UserWarning, match="its characters in 'text'"):
            found = divorder.compare(table, "topic", window=20)
        assert "length in tokens" in {line.column for line in found.lines}


@pytest.mark.parametrize(
    ("column", "same"),
    [
        *(([value] * 20, True) for value in ("a", None, [], [1.0, 2.0])),
        (["a"] * 19 + [None], False),
    ],
)
def test_a_column_of_one_value_balances_nothing_and_a_warning_says_so(column: Any, same: bool) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made, other = (
            divorder.order({"by": column, "n": [1] * 20}, "by", tokens="n", clusters=1, seed=seed)
            for seed in (0, 1)
        )
    warning = "column 'by' has the same value in all rows, so it balances nothing; leave it out of by"
    assert [str(one.message) for one in told] == [warning] * 2 * same
    assert sorted(made) == list(range(20)) and len({tuple(made), tuple(other), tuple(range(20))}) == 3


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"topic": [*"abc"], "view": pd.array([*"xyz"], pd.ArrowDtype(pa.string_view()))}),
        pa.chunked_array([pa.array([1, 2])]),
        pa.table({"topic": [*"ab"], "view": pa.array([*"ab"], pa.string_view()), "n": [1, 2]}),
        pa.table({"topic": pa.RunEndEncodedArray.from_arrays([1, 2], ["a", "b"]), "n": [1, 2]}),
    ],
    ids=["views in pandas", "a stream of numbers", "views", "runs"],
)
def test_what_arrow_cannot_do_is_said_in_a_sentence(table: Any) -> None:
    with pytest.raises(InputError, match=r"; expected (a type|a stream|text)"):
        divorder.reorder(table, "topic", tokens=None if isinstance(table, pd.DataFrame) else "n")


@pytest.mark.parametrize(
    ("by", "tokens", "message"),
    [
        ("topic", "topic", "'topic', which holds .*string; expected whole numbers"),
        ("topic", "negative", "column 'negative' holds -1; expected numbers of 0 or more"),
        ("topic", "half", "expected whole numbers of 0 or more"),
        ("topic", "none", "lacks some numbers"),
        ("topic", "nan", "lacks some numbers"),
        ("topic", 7, "tokens is 7; expected the name of a column"),
        ("topic", [9] * 999, r"tokens is \[9, 9, .{,60}; expected .*: add lengths as a column"),
        ("topik", "n", "no column 'topik'; its columns are .*; did you mean 'topic'"),
        ("meta", "n", "expected plain values: name one of its fields, meta.source"),
        ([], "n", "expected the name of a column"),
        (pd.Series(["sea"], name="topic"), "n", r"by is 0 sea Name: topic.*; expected the name of a column"),
        (["topic", "topic"], "n", "names 'topic' twice"),
        ({"topic": "1"}, "n", "the weight of 'topic' is '1'"),
        ("bytes", "n", "holds binary; expected text, .*decode it to text"),
        ("ragged", "n", "lists of 1 to 2 floats; expected vectors of one length"),
        ("broken", "n", "row 1 of column 'broken' holds NaN"),
        ("holes", "n", "vectors with nulls in them"),
        ("nested", "n", "expected lists of text, whole numbers or booleans"),
        ("empty", "n", "vectors without dims"),
        ("mixed", "n", "expected values of one type"),
    ],
)
def test_columns_that_make_no_trait_and_lengths_that_are_none(by: Any, tokens: Any, message: str) -> None:
    table = {
        "topic": ["a", "b"],
        "meta": [{"source": "x"}, None],
        "bytes": [b"x", b"y"],
        "ragged": [[0.5], [0.5, 1.5]],
        "broken": [[0.5], [float("nan")]],
        "holes": [[0.5], [None]],
        "nested": [[["x"]], [["y"]]],
        "empty": [np.zeros(0), np.zeros(0)],
        "mixed": [1, "x"],
        "negative": [1, -1],
        "half": [0.5, 1],
        "none": [1, None],
        "nan": np.array([1, np.nan]),
        "n": [1, 1],
    }
    with pytest.raises(InputError, match=message):
        divorder.order(table, by, tokens=tokens)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_hardly_a_row(kind: str, rows: int) -> None:
    table = KINDS[kind]([{"topic": "a", "vector": [1.0, 0.0], "tokens": 1}] * rows)
    if not rows and kind != "list of dicts":
        # Of no rows a table still has columns.
        table = {name: [] for name in ("topic", "vector", "tokens")}
        table = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "Arrow": pa.table}.get(kind, dict)(table)
    made = divorder.order(table, ["topic", "vector"], tokens="tokens")
    assert made.dtype == np.int64 and sorted(made.tolist()) == list(range(rows))


@pytest.mark.parametrize("module", ["ordering", "comparison", "table", "traits", "tokens"])
def test_the_examples_of_the_docstrings_run(module: str) -> None:
    found = doctest.testmod(importlib.import_module(f"dagster_divorder.tables.{module}"))
    assert not found.failed
    assert found.attempted or module not in ("ordering", "comparison")


@pytest.mark.slow
def test_a_first_call_loads_neither_orchestrator_nor_model_library() -> None:
    code = """
import sys, time
begin = time.process_time()
import dagster_divorder as divorder
seconds = time.process_time() - begin
import numpy as np, pyarrow as pa
columns = {"a": ["x", None] * 20, "n": np.arange(40)}
for table in (pa.table(columns), columns):
    divorder.reorder(table, ["a", "n"], tokens="n")
heavy = {"torch", "transformers", "dagster", "polars", "datasets", "matplotlib", "sklearn"}
print(seconds, *heavy & {name.partition(".")[0] for name in sys.modules})
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, *heavy = run.stdout.split()
    assert not heavy
    assert float(seconds) < 0.05


MANY_ROWS = random_rows(800, seed=3)


def by_measure(found: Any) -> dict[tuple[str, str], Any]:
    return {
        (line.column, "drift" if line.measure.startswith("drift") else line.measure): line
        for line in found.lines
    }


def test_what_is_balanced_beats_shuffling_and_the_rest_is_measured_too() -> None:
    found = divorder.compare(MANY_ROWS, ["topic", "tags", "vector"], window=50, tokens="tokens")
    lines = by_measure(found)
    for column in ("topic", "tags", "vector"):
        line, worst = (lines[column, measure] for measure in (TV, SHARE_ERROR))
        assert line.balanced and line.value < 0.8 * line.shuffled and line.spread > 0
        assert worst.value < worst.shuffled and line.given > line.value
    unseen = {line.column for line in found.lines if not line.balanced}
    # `meta` is a struct, which makes no trait; `tokens` is what rows are long.
    assert unseen == {"label", "score", "day", "ok"}
    assert lines["vector, mean vector", "drift"].balanced
    assert (LENGTH, "drift") in lines
    assert not found.drifting


@pytest.mark.parametrize("by", ["label", "score", "meta.source", "day", "ok"])
def test_every_type_of_column_is_balanced(by: str) -> None:
    line = by_measure(divorder.compare(MANY_ROWS, by, window=50, tokens="tokens"))[by, TV]
    assert line.balanced and line.value < 0.7 * line.shuffled


def test_an_order_that_drifts_is_told_of() -> None:
    rows = sorted(MANY_ROWS, key=lambda row: row["tokens"])
    found = divorder.compare(rows, "topic", window=50, tokens="tokens", strategy="original")
    assert LENGTH in found.drifting
    assert f"drifting: {', '.join(found.drifting)}" in str(found)
    (line,) = [line for line in str(found).splitlines() if LENGTH in line and "drift," in line]
    assert " drifts " in line


def test_it_prints_aligned_and_shows_as_html() -> None:
    table = {"a<b": ["x", "y"] * 100, "n": [1] * 200}
    found = divorder.compare(table, "a<b", window=20, tokens="n", seed=5)
    title, empty, *lines = str(found).splitlines()
    assert repr(found) == str(found)
    assert title == "200 rows, balanced, windows of 20 rows, beside 5 shuffles: nothing drifts"
    assert not empty and len({len(line.rstrip()) for line in lines[1:]}) == 1
    html = found._repr_html_()
    assert html.count("<tr>") == len(found.lines) + 1
    assert "a&lt;b" in html and "a<b" not in html
    assert str(divorder.compare(table, "a<b", window=20, tokens="n", seed=5)) == str(found)


def test_ids_and_texts_sort_no_rows() -> None:
    table = {
        "topic": ["x", "y"] * 100,
        "id": [f"id {at}" for at in range(200)],
        "few": [f"v{at % 7}" for at in range(200)],
        "blob": [b"x"] * 200,
        "n": [1] * 200,
    }
    found = divorder.compare(table, "topic", window=20, tokens="n")
    assert {line.column for line in found.lines} == {"topic", "few"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window is 0; expected a whole number of 1 or more"),
        ({"window": 800}, "window is 800 rows; expected fewer than the table has, 800"),
        ({"window": 10, "shuffles": 1}, "shuffles is 1; expected a whole number of 2 or more"),
    ],
)
def test_what_cannot_be_compared(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        divorder.compare(MANY_ROWS, "topic", tokens="tokens", **arguments)


def test_a_picture_of_each_column_shuffled_and_in_order() -> None:
    figure = divorder.plot(pa.Table.from_pylist(MANY_ROWS), ["topic", "tags"], window=50, tokens="tokens")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["topic, shuffled", "topic, in order", "tags, shuffled", "tags, in order"]
    # What a notebook shows.
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    shuffled, ours = (np.asarray(axes.images[0].get_array()) for axes in figure.axes[:2])
    # Behind a gap, the whole.
    assert shuffled.shape == (200, 20, 4)
    shuffled, ours = shuffled[:, :16], ours[:, :16]
    # Bands stay level in our order.
    assert (ours != ours[:, :1]).mean() < (shuffled != shuffled[:, :1]).mean()
