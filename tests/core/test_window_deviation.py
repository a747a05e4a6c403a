"""Windows anywhere: worst and mean deviation over every window position, against exact fractions and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dagster_divorder.core import measure
from dagster_divorder.core.measure import windows_in_stream
from dagster_divorder.core.measure.shares import aligned_windows
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import metrics as slow

laws = settings(max_examples=examples(60), deadline=None)


def windows(tokens, codes, n_values, window):
    return windows_in_stream(np.array(tokens, np.int64), np.array(codes, np.int32), n_values, window)


@laws
@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 1, 2, 7, 40]), st.integers(0, 3)), max_size=14),
    st.one_of(st.integers(1, 12), st.sampled_from([40, 80, 200])),
)
def test_it_equals_its_twin(rows, window):
    tokens, codes = [n for n, _ in rows], [code for _, code in rows]
    one, total = windows(tokens, codes, 4, window), sum(tokens)
    if total <= window:
        assert (one.worst, one.mean, one.worst_tv, one.mean_tv) == (0, 0, 0, 0)
        assert one.partial == (0 < total < window)
        return
    starts, worst, tv = slow.sliding_windows(tokens, codes, 4, window)
    at, worst, tv = (np.array(values, float) for values in (starts, worst, tv))
    assert one.positions == total - window + 1 and not one.partial
    assert_allclose([one.worst, one.worst_tv], [worst.max(), tv.max()], atol=1e-12)
    means = [np.trapezoid(values, at) / at[-1] for values in (worst, tv)] if at[-1] else [worst[0], tv[0]]
    assert_allclose([one.mean, one.mean_tv], means, atol=1e-12)
    assert_allclose(worst[starts.index(one.worst_start)], worst.max(), atol=1e-12)


documents = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=20
)


@laws
@given(documents, st.integers(1, 40))
def test_no_window_of_single_tokens_strays_further(rows, window):
    """Every token written out, every window looked at: the worst is attained, and the mean bounded from above."""
    tokens, labels, _ = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    stream = np.repeat(labels, tokens)
    if len(stream) <= window:
        return
    before = np.cumsum(np.vstack([np.zeros(4), np.eye(4)[stream]]), axis=0)
    gaps = np.abs((before[window:] - before[:-window]) / window - before[-1] / len(stream))
    found = windows_in_stream(tokens, labels.astype(np.int32), 4, window)
    assert found.positions == len(gaps)
    assert_allclose(found.worst, gaps.max(), atol=1e-12)
    assert_allclose(found.worst_tv, gaps.sum(axis=1).max() / 2, atol=1e-12)
    assert_allclose(found.worst, gaps[found.worst_start].max(), atol=1e-12)
    # Trapezoid sums of the same convex pieces: finer ones are lower.
    for mean, values in ((found.mean, gaps.max(axis=1)), (found.mean_tv, gaps.sum(axis=1) / 2)):
        assert mean >= np.trapezoid(values) / (len(gaps) - 1) - 1e-12


@laws
@given(documents, st.integers(1, 40))
def test_aligned_windows_are_among_all_windows(rows, window):
    tokens, labels, lengths = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    for codes, j in ((labels, 4), (lengths, 3)):
        one = windows_in_stream(tokens, codes.astype(np.int32), j, window)
        worst, tv, _ = aligned_windows(tokens, codes.astype(np.int32), j, window)
        assert worst.max(initial=0.0) <= one.worst + 1e-12 and tv.max(initial=0.0) <= one.worst_tv + 1e-12
        assert one.partial == (0 < tokens.sum() < window)


@pytest.mark.parametrize("factor", [10**3, 10**12])
def test_trillions_of_tokens_are_counted_exactly(factor):
    rng = np.random.default_rng(0)
    tokens, codes = rng.integers(1, 50, 200), rng.integers(0, 5, 200).astype(np.int32)
    one = windows_in_stream(tokens, codes, 5, 333)
    many = windows_in_stream(tokens * factor, codes, 5, 333 * factor)
    assert many.positions == (one.positions - 1) * factor + 1
    assert many.worst_start == one.worst_start * factor
    for name in ("worst", "mean", "worst_tv", "mean_tv"):
        assert_allclose(getattr(many, name), getattr(one, name), rtol=1e-12)


def test_total_variation_does_not_drift_over_many_steps():
    rng = np.random.default_rng(1)
    codes = rng.permutation(np.arange(200_000, dtype=np.int32) % 7)
    found = windows_in_stream(np.full(200_000, 3), codes, 7, 30)
    blocks = np.cumsum(np.vstack([np.zeros(7), np.eye(7)[codes]]), axis=0)
    tv = np.abs((blocks[10:] - blocks[:-10]) / 10 - 1 / 7 - (blocks[-1] / 200_000 - 1 / 7)).sum(axis=1) / 2
    assert_allclose(found.mean_tv, np.trapezoid(tv) / (len(tv) - 1), atol=1e-13)
    assert_allclose(found.worst_tv, tv.max(), atol=1e-13)


@pytest.mark.parametrize("window", [10, 11], ids=["exactly one window", "shorter than a window"])
def test_a_whole_of_one_window_deviates_by_nothing(window):
    found = windows([4, 6], [0, 1], 2, window)
    assert (found.positions, found.worst, found.mean, found.worst_start) == (1, 0.0, 0.0, 0)
    assert found.partial == (window == 11)


@pytest.mark.parametrize("tokens", [[], [0, 0, 0]], ids=["no document", "no token"])
def test_nothing_to_measure_gives_zeros(tokens):
    found = windows(tokens, [0] * len(tokens), 2, 4)
    assert (found.positions, found.worst, found.worst_start, found.partial) == (0, 0.0, -1, False)


def test_a_window_of_no_tokens_is_refused():
    with pytest.raises(InputError, match="window_tokens is 0"):
        windows([1], [0], 1, 0)


def test_the_ideal_of_shuffled_tokens():
    rng = np.random.default_rng(3)
    p, n = np.array([0.5, 0.3, 0.2]), 1000
    drawn = rng.multinomial(n, p, 20_000) / n - p
    largest, tv = measure.shuffled_tokens(p, n)
    assert_allclose(np.abs(drawn).mean(axis=0).max(), largest, rtol=0.02)
    assert_allclose(np.abs(drawn).sum(axis=1).mean() / 2, tv, rtol=0.02)
    assert np.abs(drawn).max(axis=1).mean() >= largest
    assert measure.shuffled_tokens([1.0], n) == (0.0, 0.0)
