"""Coverage of a plan against counting every token one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.packing import PackedSequences, Pieces, pack
from dagster_divorder.core.packing.coverage import coverage

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=6)
RUNS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10), st.integers(1, 8)), max_size=12)


def plan(runs: list[tuple[int, int, int]]) -> PackedSequences:
    document, start, length = np.array(runs, np.int64).reshape(-1, 3).T
    return PackedSequences(document, start, length, np.arange(len(runs) + 1), 100)


def counted(runs: list[tuple[int, int, int]], lengths: list[int]) -> tuple[int, int, int]:
    """Tokens missing, doubled and outside, by laying each token."""
    laid = Counter((document, at) for document, start, length in runs for at in range(start, start + length))
    real = {(document, at) for document, length in enumerate(lengths) for at in range(length)}
    doubled = sum(times - 1 for token, times in laid.items() if token in real)
    return len(real - set(laid)), doubled, sum(times for token, times in laid.items() if token not in real)


@given(LENGTHS, RUNS)
def test_it_counts_what_counting_every_token_does(
    lengths: list[int], runs: list[tuple[int, int, int]]
) -> None:
    found = coverage(plan(runs), np.array(lengths))
    assert (found.missing, found.doubled, found.outside) == counted(runs, lengths)
    assert found.tokens == sum(lengths)
    assert found.exact == (counted(runs, lengths) == (0, 0, 0))


@pytest.mark.parametrize("method", ["concat", "best_fit", "none"])
@settings(deadline=None)
@given(lengths=LENGTHS, sequence_length=st.integers(1, 12))
def test_what_packing_makes_is_exact(method: str, lengths: list[int], sequence_length: int) -> None:
    every = np.arange(len(lengths))
    pieces = Pieces(every, np.zeros_like(every), np.array(lengths))
    found = coverage(pack(pieces, method=method, sequence_length=sequence_length), np.array(lengths))
    assert found.exact
    assert found.first is None


@pytest.mark.parametrize(
    ("runs", "first"),
    [
        ([(0, 0, 2), (1, 0, 3)], 2),
        ([(0, 0, 2), (1, 0, 3), (1, 1, 1), (2, 0, 4)], 1),
        ([(0, 0, 3), (1, 0, 3), (2, 0, 4)], 0),
        ([(0, 0, 2), (1, 0, 3), (2, 0, 4), (3, 0, 1)], None),
    ],
    ids=["missing", "doubled", "too long", "unknown document"],
)
def test_it_names_the_first_document_at_fault(runs: list[tuple[int, int, int]], first: int | None) -> None:
    found = coverage(plan(runs), np.array([2, 3, 4]))
    assert not found.exact
    assert found.first == first
