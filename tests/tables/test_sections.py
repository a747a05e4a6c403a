"""Orders of a table in sections: what is consumed, then the rest; windows of a score, at their own mix."""

from __future__ import annotations

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
from dagster_divorder.core.order.schedule import SHAPES
from dagster_divorder.errors import InputError
from tests.conftest import examples

N = 3000


def made_table(*, tied: float = 0.0) -> dict[str, Any]:
    """Three sources, of which the first has the higher quality by `tied` standard deviations."""
    random = np.random.default_rng(0)
    source = random.integers(3, size=N)
    return {
        "source": np.array(list("abc"))[source],
        "tokens": random.integers(10, 90, N),
        "quality": random.normal(size=N) + tied * (source == 0),
    }


TABLE = made_table()


def order(table: Any = TABLE, **arguments: Any) -> np.ndarray:
    return divorder.order(table, "source", tokens="tokens", **{"score": "quality", **arguments})


def rank_correlation(order: np.ndarray, table: Any = TABLE) -> float:
    return float(np.corrcoef(np.arange(N), pd.Series(table["quality"][order]).rank())[0, 1])


def test_a_rising_score_rises_and_every_batch_keeps_the_mix() -> None:
    """Beside the papers' window shuffle in the same windows."""
    ours, theirs = (order(strategy=strategy, batch=32) for strategy in ("balanced", "random"))
    assert sorted(ours.tolist()) == list(range(N))
    assert rank_correlation(ours) > 0.99 * rank_correlation(theirs) > 0.95

    def strays(order: np.ndarray) -> float:
        seen = (TABLE["source"][:, None] == list("abc"))[order] * TABLE["tokens"][order, None]
        shares = seen[: N // 20 * 20].reshape(-1, 20, 3).sum(axis=1)
        shares = shares / shares.sum(axis=1, keepdims=True)
        return float(np.abs(shares - shares.mean(axis=0)).sum(axis=1).mean())

    assert strays(ours) < 0.6 * strays(theirs)


def test_windows_are_runs_of_the_ranking_in_the_order_of_the_strategy() -> None:
    even = {**TABLE, "tokens": np.full(N, 7)}
    ranking = np.argsort(TABLE["quality"])
    for expected, arguments in (
        (ranking, {}),
        (ranking[::-1], {"shape": "fall"}),
        (np.concatenate([ranking[at::5] for at in range(5)]), {"shape": "fold"}),
    ):
        made = order(even, strategy="original", batch=30, **arguments)
        assert made.tolist() == np.sort(expected.reshape(-1, 120)).ravel().tolist()


@pytest.mark.parametrize("score", [None, "quality"])
def test_what_is_consumed_comes_first_and_the_rest_at_its_own_mix(score: str | None) -> None:
    frozen = np.flatnonzero(TABLE["source"] == "a")[:500]
    made = order(frozen=frozen, score=score)
    assert made[:500].tolist() == frozen.tolist() and sorted(made.tolist()) == list(range(N))
    is_a = (TABLE["source"] == "a")[made[500:]]
    assert is_a.reshape(10, -1).mean(axis=1) == pytest.approx(np.full(10, is_a.mean()), abs=0.08)


def test_behind_what_is_consumed_the_schedule_goes_on() -> None:
    """After four of five folds, one is left."""
    folds = {"shape": "fold", "batch": 16}
    read = N * 4 // 5
    left = TABLE["quality"][order(frozen=order(**folds)[:read], **folds)[read:]]
    assert np.corrcoef(np.arange(N - read), pd.Series(left).rank())[0, 1] > 0.95


@pytest.mark.parametrize(
    "array", [np.asarray, list, pd.Series, pl.Series, pa.array, lambda values: pd.array(values, "Float64")]
)
def test_an_array_is_as_good_as_a_column(array: Any) -> None:
    assert order(score=array(TABLE["quality"])).tolist() == order().tolist()


@pytest.mark.parametrize("nothing", [None, float("nan"), float("inf")])
def test_rows_without_a_score_are_spread_evenly_and_said(nothing: Any) -> None:
    scores = [nothing if at % 5 == 0 else value for at, value in enumerate(TABLE["quality"].tolist())]
    with pytest.warns(UserWarning, match=r"600 of 3,000 rows have no score: they are spread evenly") as told:
        made = divorder.order(TABLE, "source", tokens="tokens", score=scores)
    assert len(told) == 1 and told[0].filename == __file__
    lacking = (made % 5 == 0).reshape(10, -1).sum(axis=1)
    assert lacking.min() > 45 and lacking.max() < 75


@pytest.mark.parametrize("unit", ["rows", "tokens"])
def test_a_comparison_holds_windows_against_the_mix_of_their_section(unit: Any) -> None:
    table = made_table(tied=1.0) | {"tags": [["x", "y"][: at % 3] for at in range(N)]}
    found = divorder.compare(
        table,
        ["source", "tags"],
        window=32 if unit == "rows" else 1600,
        unit=unit,
        tokens="tokens",
        batch=32,
        score="quality",
    )
    lines = {(line.column, line.measure): line for line in found.lines}
    off = lines["(score)", "off the schedule"]
    assert off.value < 1.02 * off.shuffled < 0.05
    for column in ("source", "tags"):
        there = lines[column, "TV of windows, mean"]
        assert there.balanced and there.value < 0.6 * there.shuffled
    # The schedule moves the source that goes with the score; no order is told that it drifts for that.
    assert "along rise of quality" in str(found) and not found.drifting and "nan" not in str(found)


def test_the_picture_shows_it() -> None:
    figure = divorder.plot(TABLE, "source", window=100, tokens="tokens", score="quality", shape="fold")
    assert figure.axes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "source"}, "column 'source', which holds .*string; expected numbers"),
        ({"score": "qualty"}, "no column 'qualty'; did you mean 'quality'"),
        ({"score": [True, False] * (N // 2)}, "the array, which holds bool; expected numbers"),
        ({"score": [1.5] * N}, "which is 1.5 in every row; expected numbers that differ"),
        ({"score": [1.0, 2.0]}, "score holds 2 numbers; expected one for each of 3,000 rows"),
        ({"score": 3}, "score is 3; expected the name of a column, or a number for each row"),
        ({"score": [None] * 2000 + [1.0] * 500 + [2.0] * 500}, "2,000 of 3,000 rows have no number; .* half"),
        ({"score": [None] * N}, "3,000 of 3,000 rows have no number"),
        ({"shape": "folds"}, "shape is 'folds'; expected one of rise, .*did you mean 'fold'"),
        ({"points": [(0, 0), (1, 1)]}, "points is no longer an argument of an order: give as the score"),
        ({"keep": "quality"}, "keep is no longer an argument of an order: rank the scores inside each value"),
        ({"strength": 0.5}, "strength is no longer an argument of an order: give rows"),
        ({"targets": {}}, "targets is no longer an argument of an order: order the rows of each phase"),
        ({"frozen": [N]}, "frozen names row 3000; there are 3000, counted from 0"),
        ({"frozen": [2, 2]}, "frozen names row 2 twice"),
        ({"score": None, "shape": "fold"}, "shape is given, and score is not"),
        ({"strategy": "fold"}, "strategy is 'fold', which is a schedule; expected shape='fold'"),
    ],
)
def test_what_cannot_be_followed_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        order(**arguments)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.none() | st.floats(width=32) | st.sampled_from([0.0, 1.0])),
        max_size=60,
    ),
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from(["balanced", "random", "original", "f3", "stratified"]),
    st.integers(0, 9),
)
def test_the_order_is_a_permutation_or_refused(rows: Any, shape: str, strategy: str, consumed: int) -> None:
    table = {"source": [source for source, _ in rows], "quality": [score for _, score in rows]}
    table["tokens"] = list(range(len(rows)))
    frozen = range(len(rows))[::-1][:consumed]
    arguments = {"shape": shape, "strategy": strategy, "batch": 4, "frozen": frozen}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = order(table, **arguments)
        except InputError as error:
            assert "expected" in str(error)
            return
        assert sorted(made.tolist()) == list(range(len(rows))) and made[:consumed].tolist() == list(frozen)
        assert made.tolist() == order(table, **arguments).tolist()


@pytest.mark.parametrize("rows", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", ["rise", "zigzag"])
def test_hardly_a_row(rows: int, shape: str) -> None:
    table = {"source": ["a"] * rows, "tokens": [1] * rows, "quality": list(range(rows))}
    made = order(table, shape=shape)
    assert made.dtype == np.int64 and sorted(made.tolist()) == list(range(rows))
