"""Spans of positions against a set of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.core.spans import Spans


@st.composite
def spans_and_runs(draw: st.DrawFn) -> tuple[Spans, list[tuple[int, int]]]:
    """Spans, of which some touch, and runs (first, length), of which some are empty."""
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=8))
    edges = np.cumsum(np.array(steps, np.int64).reshape(-1))
    runs = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=6))
    return Spans(edges[::2], edges[1::2]), runs


@given(drawn=spans_and_runs())
def test_runs_are_counted_cut_and_marked_position_by_position(
    drawn: tuple[Spans, list[tuple[int, int]]],
) -> None:
    spans, runs = drawn
    inside = {at for first, last in zip(spans.first, spans.last, strict=True) for at in range(first, last)}
    marks = [[at in inside for at in range(first, first + length)] for first, length in runs]
    first, length = np.array(runs, np.int64).reshape(-1, 2).T
    assert spans.marked(first, length).tolist() == [mark for run in marks for mark in run]
    assert spans.within(first, length).tolist() == [sum(run) for run in marks]
    cut = {
        (run, at) for run, low, high in zip(*spans.cut(first, length), strict=True) for at in range(low, high)
    }
    assert cut == {
        (run, at) for run, mark in enumerate(marks) for at, is_inside in enumerate(mark) if is_inside
    }


@given(drawn=spans_and_runs(), cuts=st.tuples(st.integers(0, 20), st.integers(0, 20)))
def test_shifted_spans_are_those_that_begin_between(
    drawn: tuple[Spans, list[tuple[int, int]]], cuts: tuple[int, int]
) -> None:
    spans, (low, high) = drawn[0], sorted(cuts)
    shifted = spans.shifted(low, high)
    kept = [
        (first - low, last - low)
        for first, last in zip(spans.first, spans.last, strict=True)
        if low <= first < high
    ]
    assert list(zip(shifted.first, shifted.last, strict=True)) == kept
