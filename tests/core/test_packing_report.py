"""Coverage of a plan, and distances between copies, against counting every token one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.packing import PackedSequences, Pieces, pack
from dagster_divorder.core.packing.report import coverage, sequence_spacing
from tests.conftest import examples

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
    missing, doubled, outside = counted(runs, lengths)
    assert coverage(plan(runs), np.array(lengths)) == (sum(lengths), missing, doubled + outside)


@given(
    texts=st.lists(st.integers(0, 5), max_size=30).map(lambda texts: np.array(texts, np.int64)),
    length=st.integers(1, 30),
    epochs=st.integers(1, 2),
    seed=st.integers(0, 3),
)
@settings(max_examples=examples(40), deadline=None)
def test_spacing_of_copies_equals_its_twin(texts: np.ndarray, length: int, epochs: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 41, 6)[texts]
    packed = pack(Pieces(np.arange(len(texts)), np.zeros_like(texts), lengths), sequence_length=length)
    orders = np.stack([random.permutation(len(packed)) for _ in range(epochs)])
    copies = np.bincount(texts[np.unique(packed.document)], minlength=6)
    last: dict[tuple[int, int], int] = {}
    distances, shares = [], []
    for place, sequence in enumerate(orders.ravel()):
        for run in range(packed.indptr[sequence], packed.indptr[sequence + 1]):
            text = int(texts[packed.document[run]])
            for at in range(packed.start[run], packed.start[run] + packed.length[run]):
                if at == 0 and copies[text] > 1:
                    if (text, at) in last:
                        distances.append(place - last[text, at])
                        shares.append(distances[-1] * copies[text] / len(packed))
                    last[text, at] = place
    found = sequence_spacing(packed, orders, texts)
    assert found["copies"] == (copies[copies > 1] - 1).sum()
    assert found["together"] == distances.count(0)
    if distances:
        assert (found["smallest"], found["median"]) == (min(distances), np.median(distances))
        assert found["median_share"] == pytest.approx(np.median(shares))
    else:
        assert {*found.values()} <= {0, None, found["copies"]}
