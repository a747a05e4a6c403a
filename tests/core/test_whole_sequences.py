"""Windows of whole sequences against windows laid out token by token, and what padding and lengths do to them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dagster_divorder.core.measure import measure_packed
from dagster_divorder.core.packing import PackedSequences
from tests.conftest import examples

VALUES = 3
laws = settings(max_examples=examples(60), deadline=None)
sequences_of = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, VALUES - 1)), min_size=1, max_size=3),
    min_size=1,
    max_size=12,
)


def plan(sequences: list[list[tuple[int, int]]]) -> tuple[PackedSequences, np.ndarray]:
    """(a plan of the sequences, a document a run; the codes of the documents)."""
    runs = [run for sequence in sequences for run in sequence]
    lengths, codes = np.array(runs, np.int64).T
    indptr = np.cumsum([0, *map(len, sequences)])
    return PackedSequences(np.arange(len(runs)), np.zeros_like(lengths), lengths, indptr, 128), codes


def deviations(sequences: list[list[tuple[int, int]]], size: int, p: np.ndarray) -> np.ndarray:
    """(worst, tv, l2) of every window of so many successive sequences, (windows, 3)."""
    rows = []
    for first in range(len(sequences) - size + 1):
        tokens = [
            code for sequence in sequences[first : first + size] for n, code in sequence for _ in range(n)
        ]
        gap = np.bincount(tokens, minlength=VALUES) / len(tokens) - p
        rows.append((np.abs(gap).max(), np.abs(gap).sum() / 2, np.sqrt((gap**2).sum())))
    return np.array(rows).reshape(-1, 3)


@given(sequences=sequences_of, batch=st.integers(1, 4), data=st.data())
@laws
def test_it_equals_windows_laid_out_token_by_token(sequences, batch, data):
    packed, codes = plan(sequences)
    places = st.permutations(range(len(sequences)))
    epochs = data.draw(st.lists(places, min_size=1, max_size=2))
    found = measure_packed(packed, epochs, {"cluster": codes}, {"cluster": VALUES}, batch=batch, whole=True)
    p = np.bincount(codes, packed.length, VALUES) / packed.length.sum()
    read = [[sequences[at] for at in epoch] for epoch in epochs]

    for size, aligned in ((1, found.sequence_shares["cluster"]), (batch, found.batch_shares["cluster"])):
        size = min(size, len(sequences))
        expected = deviations(read[0], size, p)[::size]
        assert aligned.windows == len(expected)
        assert_allclose([aligned.max_worst, aligned.mean_tv, aligned.mean_l2],
                        [expected[:, 0].max(), expected[:, 1].mean(), expected[:, 2].mean()], atol=1e-9)  # fmt: skip
    full = len(sequences) // batch
    assert_allclose(found.batch_tv["cluster"], deviations(read[0], batch, p)[::batch, 1][:full], atol=1e-9)

    history = [sequence for epoch in read for sequence in epoch]
    for size, window in zip((1, batch, 10 * batch), found.windows.values(), strict=True):
        anywhere = window["cluster"]
        if len(history) <= size:
            assert (anywhere.worst, anywhere.mean_tv) == (0, 0)
            continue
        expected = deviations(history, size, p)
        assert_allclose([anywhere.worst, anywhere.mean, anywhere.worst_tv, anywhere.mean_tv],
                        [*expected[:, 0].max(keepdims=True), expected[:, 0].mean(), expected[:, 1].max(),
                         expected[:, 1].mean()], atol=1e-9)  # fmt: skip
        starts = np.cumsum([0, *(sum(n for n, _ in sequence) for sequence in history)])
        worst = expected[np.flatnonzero(starts == anywhere.worst_start)[0], 0]
        assert worst == pytest.approx(expected[:, 0].max(), abs=1e-9)

    seam = found.seam["cluster"]
    if len(sequences) <= batch:
        assert seam.worst == 0
        return
    across = [before[-batch:] + after[:batch] for before, after in pairwise([*read, read[0]])]
    expected = [deviations(both, batch, p) for both in across]
    assert seam.worst == pytest.approx(max(one[:, 0].max() for one in expected), abs=1e-9)
    assert seam.mean_tv == pytest.approx(np.mean([one[:, 1].mean() for one in expected]), abs=1e-9)


@given(sequences=sequences_of, batch=st.integers(1, 4), data=st.data())
@laws
def test_tokens_that_do_not_count_are_none(sequences, batch, data):
    """Counted tokens measure as a plan of these alone does, and a window without any deviates by 0."""
    packed, codes = plan(sequences)
    counted = np.array([data.draw(st.integers(0, length)) for length in packed.length.tolist()])
    found = measure_packed(
        packed, np.arange(len(packed)), {"cluster": codes}, {"cluster": VALUES},
        batch=batch, whole=True, counted=counted,
    )  # fmt: skip
    assert found.tokens == counted.sum()
    sums = np.zeros((len(packed), VALUES), int)
    np.add.at(sums, (np.repeat(np.arange(len(packed)), np.diff(packed.indptr)), codes), counted)
    p = sums.sum(axis=0) / max(1, sums.sum())
    expected = []
    for first in range(len(packed) // batch):
        window = sums[first * batch : (first + 1) * batch].sum(axis=0)
        expected.append(np.abs(window / window.sum() - p).sum() / 2 if window.any() else 0.0)
    assert_allclose(found.batch_tv["cluster"], expected, atol=1e-9)
    assert all(np.isfinite(row["value"]) for row in found.rows())


def test_a_batch_of_short_records_is_as_many_records_as_one_of_long_ones():
    """Windows of tokens would call these alternating records even: a batch of four has two of each."""
    sequences = [[(100, 0)], [(1, 1)]] * 32
    packed, codes = plan(sequences)
    order = np.arange(len(packed))
    found = measure_packed(packed, order, {"cluster": codes}, {"cluster": VALUES}, batch=4, whole=True)
    assert found.batch_shares["cluster"].windows == 16
    assert found.batch_shares["cluster"].max_tv == pytest.approx(0)
    halves = np.concatenate([order[::2], order[1::2]])
    drifting = measure_packed(packed, halves, {"cluster": codes}, {"cluster": VALUES}, batch=4, whole=True)
    assert drifting.windows["batch"]["cluster"].worst == pytest.approx(100 / 101)


def test_windows_are_compared_with_the_mix_of_their_stretch():
    """The first half of the tokens is of value 0, the second of value 1."""
    packed, codes = plan([[(7, 0)], [(3, 0)]] * 20 + [[(5, 1)]] * 40)
    one, two = (
        measure_packed(
            packed,
            np.arange(80),
            {"cluster": codes},
            {"cluster": VALUES},
            batch=4,
            whole=True,
            stretches=bounds,
        )
        for bounds in (None, [0, 40, 80])
    )
    assert one.windows["batch"]["cluster"].worst == pytest.approx(0.5)
    assert one.seam["cluster"].head_tail == pytest.approx(1)
    # A window across the border is compared with both mixes.
    for found in (
        two.windows["batch"]["cluster"].worst,
        two.batch_tv["cluster"].max(),
        two.seam["cluster"].head_tail,
    ):
        assert found == pytest.approx(0, abs=1e-9)
