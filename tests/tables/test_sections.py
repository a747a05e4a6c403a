"""Orders of a table in sections: what is consumed, then the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dagster_divorder as divorder
from dagster_divorder.errors import InputError
from tests.conftest import examples

N = 3000
RANDOM = np.random.default_rng(0)
TABLE = {"source": RANDOM.choice([*"abc"], N), "tokens": RANDOM.integers(10, 90, N)}


def order(table: Any = TABLE, **arguments: Any) -> np.ndarray:
    return divorder.order(table, "source", tokens="tokens", **arguments)


def test_what_is_consumed_comes_first_and_the_rest_at_its_own_mix() -> None:
    frozen = np.flatnonzero(TABLE["source"] == "a")[:500]
    made = order(frozen=frozen)
    assert made[:500].tolist() == frozen.tolist() and sorted(made.tolist()) == list(range(N))
    is_a = (TABLE["source"] == "a")[made[500:]]
    assert is_a.reshape(10, -1).mean(axis=1) == pytest.approx(np.full(10, is_a.mean()), abs=0.08)
    # Windows are held against the mix of their section, so what was read is no drift.
    found = divorder.compare(TABLE, "source", window=50, tokens="tokens", frozen=frozen)
    (line,) = [
        line for line in found.lines if (line.column, line.measure) == ("source", "TV of windows, mean")
    ]
    assert line.value < 0.6 * line.shuffled and not found.drifting


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "quality"}, "score is no longer an argument of an order: order the rows of each window"),
        ({"shape": "saw"}, "shape is no longer an argument of an order"),
        ({"targets": {}}, "targets is no longer an argument of an order: order the rows of each phase"),
        ({"frozen": [N]}, "frozen names row 3000; there are 3000, counted from 0"),
        ({"frozen": [2, 2]}, "frozen names row 2 twice"),
        ({"strategy": "saw"}, "strategy is 'saw'; expected one of"),
    ],
)
def test_what_cannot_be_ordered_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        order(**arguments)


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(st.sampled_from("ab"), max_size=60),
    st.sampled_from(["balanced", "random", "original", "f3", "stratified"]),
    st.integers(0, 60),
)
def test_the_order_is_a_permutation_behind_what_is_consumed(rows: Any, strategy: str, consumed: int) -> None:
    table = {"source": rows, "tokens": list(range(len(rows)))}
    frozen = list(range(len(rows)))[::-1][:consumed]
    made = order(table, strategy=strategy, batch=4, frozen=frozen).tolist()
    assert sorted(made) == list(range(len(rows))) and made[: len(frozen)] == frozen
