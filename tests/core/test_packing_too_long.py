"""Documents longer than a sequence: every rule against a twin that walks from break to break."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.packing import Pieces, remaining
from dagster_divorder.core.packing.too_long import Breaks, fit
from tests.conftest import examples
from tests.twins.packing import tokens_of

Runs = list[tuple[int, int, int]]

laws = settings(max_examples=examples(80), deadline=None)
documents_of = st.lists(
    st.tuples(st.integers(0, 30), st.booleans(), st.sets(st.integers(1, 29), max_size=6)), max_size=8
)


def pieces(runs: Runs) -> Pieces:
    return Pieces(*np.array(runs, np.int64).reshape(-1, 3).T)


def rows(found: Pieces) -> Runs:
    return list(zip(found.document.tolist(), found.start.tolist(), found.length.tolist(), strict=True))


def split(length: int, breaks: list[int], sequence_length: int) -> list[tuple[int, int]]:
    """(start, length) of the pieces of one document, by walking over its breaks."""
    if length <= sequence_length:
        return [(0, length)]
    found, start, ends = [], 0, [*(at for at in breaks if at < length), length]
    while start < length:
        ahead = [end for end in ends if end > start]
        near = [end for end in ahead if end <= start + sequence_length]
        if near:
            found.append((start, near[-1] - start))
            start = near[-1]
        else:
            found.append((start, sequence_length))
            start = ahead[0]
    return found


@given(documents=documents_of, sequence_length=st.integers(1, 12), order=st.randoms())
@laws
def test_conversations_are_split_at_breaks_as_by_hand(documents, sequence_length, order):
    numbers = list(range(len(documents)))
    order.shuffle(numbers)
    whole = [(number, 0, length) for number, (length, _, _) in zip(numbers, documents, strict=True)]
    breaks = [
        (place, at)
        for place, (length, plain, inside) in enumerate(documents)
        for at in sorted(inside)
        if not plain and at < length
    ]
    place, position = np.array(breaks, np.int64).reshape(-1, 2).T
    plain = np.array([plain for _, plain, _ in documents], bool)
    found = fit(pieces(whole), "split_turns", sequence_length, Breaks(plain, place, position))
    assert rows(found) == [
        (number, start, size)
        for number, (length, plain, inside) in zip(numbers, documents, strict=True)
        for start, size in ([(0, length)] if plain else split(length, sorted(inside), sequence_length))
    ]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("cut", [(0, 0, 9), (1, 0, 8), (2, 0, 0), (3, 0, 20)]),
        ("truncate", [(0, 0, 8), (1, 0, 8), (2, 0, 0), (3, 0, 8)]),
        ("drop", [(1, 0, 8), (2, 0, 0)]),
        ("split_turns", [(0, 0, 9), (1, 0, 8), (2, 0, 0), (3, 0, 20)]),
    ],
)
def test_the_rules_without_breaks(rule, expected):
    assert rows(fit(pieces([(0, 0, 9), (1, 0, 8), (2, 0, 0), (3, 0, 20)]), rule, 8)) == expected


@given(
    runs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 3)), max_size=8),
    consumed=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(1, 3)), max_size=6),
)
@laws
def test_what_remains_of_pieces_is_their_tokens_but_the_consumed_ones(runs, consumed):
    """Pieces need neither begin at token 0 nor hold what was consumed."""

    def disjoint(every: Runs) -> Runs:
        kept: Runs = []
        for run in every:
            if not {*tokens_of([run])} & {*tokens_of(kept)}:
                kept.append(run)
        return kept

    own = disjoint([run for run in runs if run[2]])
    gone = disjoint(consumed)
    left = rows(remaining(pieces(own), pieces(gone)))
    assert tokens_of(left) == [token for token in tokens_of(own) if token not in {*tokens_of(gone)}]
    assert all(length for _, _, length in left)
