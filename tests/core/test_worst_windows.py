"""What a window holds, and how far a sequence is from the mix: token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.core.measure.worst_windows import sequence_variation, window_contents


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
    st.lists(st.integers(0, 19), max_size=40),
    st.integers(0, 200),
    st.integers(1, 60),
)
def test_a_window_holds_the_tokens_that_lie_in_it(
    tokens: list[int], order: list[int], start: int, window: int
) -> None:
    order = [item % len(tokens) for item in order]
    stream = [at for at, item in enumerate(order) for _ in range(tokens[item])]
    inside = stream[start : start + window]
    items, held = window_contents(order, tokens, start, window)
    places = list(dict.fromkeys(inside))
    assert items.tolist() == [order[at] for at in places]
    assert held.tolist() == [inside.count(at) for at in places]


@given(st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=12))
def test_variation_is_half_the_sum_of_all_differences(rows: list[list[int]]) -> None:
    counts = np.array(rows)
    found = sequence_variation(csr_matrix(counts))
    whole = counts.sum(axis=0) / max(counts.sum(), 1)
    for row, value in zip(counts, found, strict=True):
        expected = np.abs(row / row.sum() - whole).sum() / 2 if row.sum() else 0.0
        assert value == pytest.approx(expected, abs=1e-12)
