"""Rows of a batch are dealt to ranks of equal cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.ranks import arranged, deal_to_ranks, slowest_rank
from tests.conftest import examples


def slow_deal(costs: list[float], ranks: int, micro: int) -> list[list[list[int]]]:
    """The same deal, said plainly."""
    rows = sorted(range(len(costs)), key=lambda row: (-costs[row], row))
    steps = []
    for first in range(0, len(rows), ranks * micro):
        dealt: list[list[int]] = [[] for _ in range(ranks)]
        for row in rows[first : first + ranks * micro]:
            with_room = [rank for rank in range(ranks) if len(dealt[rank]) < micro]
            least = min(with_room, key=lambda rank: (sum(costs[at] for at in dealt[rank]), rank))
            dealt[least].append(row)
        steps.append(dealt)
    return steps


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[float], int, int]:
    ranks, micro, steps = (draw(st.integers(1, most)) for most in (5, 4, 3))
    size = ranks * micro * steps
    return draw(st.lists(st.integers(0, 50).map(float), min_size=size, max_size=size)), ranks, micro


@settings(max_examples=examples(200), deadline=None)
@given(batches())
def test_the_deal_is_the_slow_twins(batch: tuple[list[float], int, int]) -> None:
    costs, ranks, micro = batch
    dealt = deal_to_ranks(costs, ranks, micro)
    assert dealt.tolist() == slow_deal(costs, ranks, micro)
    assert sorted(dealt.ravel().tolist()) == list(range(len(costs)))


@settings(max_examples=examples(100), deadline=None)
@given(batches())
def test_rows_of_near_length_share_a_padded_micro_batch(batch: tuple[list[float], int, int]) -> None:
    costs, ranks, micro = batch
    lengths = np.array(costs, np.int64)
    dealt = deal_to_ranks(lengths, ranks, micro, padded=True).ravel()
    assert sorted(dealt.tolist()) == list(range(len(costs)))
    padded, as_they_come = (rows.reshape(-1, micro).max(1).sum() for rows in (lengths[dealt], lengths))
    assert padded <= as_they_come
    # No arrangement takes less time: the slowest ranks of all micro-steps together.
    step = ranks * micro
    assert lengths[dealt].reshape(-1, step).max(1).sum() <= lengths.reshape(-1, step).max(1).sum()


@pytest.mark.parametrize("shares", ["micro-batches", "rows"])
def test_an_arrangement_gives_each_rank_its_rows(shares: Any) -> None:
    costs, ranks, micro = np.random.default_rng(0).lognormal(size=24), 3, 2
    dealt = deal_to_ranks(costs, ranks, micro)
    steps = arranged(costs, ranks, micro, shares).reshape(-1, ranks * micro)
    for at, step in enumerate(steps):
        read = [
            step[rank::ranks] if shares == "rows" else step.reshape(ranks, micro)[rank]
            for rank in range(ranks)
        ]
        assert np.array_equal(read, dealt[at])


def test_ranks_wait_for_the_slowest() -> None:
    assert slowest_rank([4, 0, 2, 2], 2, 1) == pytest.approx((2 + 1) / 2)
    assert slowest_rank([4, 4, 4, 4, 9], 2, 2) == 1.0
    assert slowest_rank([0, 0], 2, 1) == 1.0
    assert slowest_rank([3, 1, 1, 1], 2, 2, padded=True) == pytest.approx(1.5)
