"""Cells are tokens at even distances; migrating them ends in the new order and begins in the old one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.core.measure.migration import frame_ends, migrated, sample_cells
from dagster_divorder.errors import InputError


@st.composite
def orders(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array(draw(st.lists(st.integers(0, 9), min_size=1, max_size=20)), np.int64)
    return np.array(draw(st.permutations(range(len(tokens))))), tokens


@given(orders(), st.integers(1, 60))
def test_cells_are_tokens_at_even_distances(case: tuple[np.ndarray, np.ndarray], asked: int) -> None:
    order, tokens = case
    cells = sample_cells(order, tokens, asked)
    stream = [(document, at) for document in order for at in range(tokens[document])]
    count = min(asked, len(stream))
    expected = [stream[(2 * cell + 1) * len(stream) // (2 * count)] for cell in range(count)]
    assert cells.document.tolist() == [document for document, _ in expected]
    # The rank is the cell's place when the same tokens lie as they did at first.
    assert cells.original_rank.tolist() == [sorted(expected).index(token) for token in expected]


@given(orders(), st.integers(1, 60), st.data())
def test_what_has_been_placed_is_in_the_new_order_and_the_rest_in_the_old(
    case: tuple[np.ndarray, np.ndarray], asked: int, data: st.DataObject
) -> None:
    cells = sample_cells(*case, asked)
    count = len(cells.document)
    placed = data.draw(st.integers(0, count))
    found = migrated(cells, placed)
    assert sorted(found.tolist()) == list(range(count))
    assert found[:placed].tolist() == list(range(placed))
    assert (np.diff(cells.original_rank[found[placed:]]) > 0).all()


@given(st.integers(0, 10_000), st.integers(2, 700))
def test_frames_run_from_nothing_to_everything(items: int, frames: int) -> None:
    ends = frame_ends(items, frames)
    assert len(ends) == frames
    assert (ends[0], ends[-1]) == (0, items)
    assert np.diff(ends).min() >= items // (frames - 1)
    assert np.diff(ends).max() <= items // (frames - 1) + 1


def test_no_cells_is_an_error_that_says_so() -> None:
    with pytest.raises(InputError, match="cells is 0"):
        sample_cells([0], [3], 0)
