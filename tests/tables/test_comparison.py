"""Measures of a table's order beside shuffles, of what it balanced and of what it did not see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dagster_divorder as divorder
from dagster_divorder.errors import InputError
from dagster_divorder.tables.comparison import LENGTH, SHARE_ERROR, TV
from tests.tables.kinds import random_rows

ROWS = random_rows(800, seed=3)


def by_measure(found: Any) -> dict[tuple[str, str], Any]:
    return {
        (line.column, "drift" if line.measure.startswith("drift") else line.measure): line
        for line in found.lines
    }


def test_what_is_balanced_beats_shuffling_and_the_rest_is_measured_too() -> None:
    found = divorder.compare(ROWS, ["topic", "tags", "vector"], window=50, tokens="tokens")
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
    line = by_measure(divorder.compare(ROWS, by, window=50, tokens="tokens"))[by, TV]
    assert line.balanced and line.value < 0.7 * line.shuffled


def test_an_order_that_drifts_is_told_of() -> None:
    rows = sorted(ROWS, key=lambda row: row["tokens"])
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
        divorder.compare(ROWS, "topic", tokens="tokens", **arguments)


def test_a_picture_of_each_column_shuffled_and_in_order() -> None:
    figure = divorder.plot(pa.Table.from_pylist(ROWS), ["topic", "tags"], window=50, tokens="tokens")
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
