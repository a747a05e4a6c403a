"""The window kernels against their token-by-token twins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dagster_divorder.core.kernels import windows
from tests.conftest import examples
from tests.twins import metrics as slow

# Zero-token documents, documents longer than many windows, one document, one value, no document at all.
lengths = st.one_of(st.integers(0, 5), st.integers(0, 60), st.just(0), st.sampled_from([8, 16, 24]))
corpora = st.integers(1, 6).flatmap(
    lambda j: st.tuples(st.lists(st.tuples(lengths, st.integers(0, j - 1)), max_size=25), st.just(j))
)
window_sizes = st.one_of(st.integers(1, 12), st.sampled_from([8, 50, 1000]))
laws = settings(max_examples=examples(60), deadline=None)


def arrays(documents: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([n for n, _ in documents], np.int64)
    return tokens, np.array([value for _, value in documents], np.int32)


@laws
@given(corpora, window_sizes)
def test_distinct_split_equals_its_twin(corpus, window):
    tokens, codes = arrays(corpus[0])
    assert windows.distinct_split(tokens, codes, corpus[1], window).tolist() == slow.distinct_split(
        tokens, codes, window
    )


@laws
@given(corpora, window_sizes)
def test_distinct_flush_equals_its_twin(corpus, window):
    tokens, codes = arrays(corpus[0])
    assert windows.distinct_flush(tokens, codes, corpus[1], window).tolist() == slow.distinct_flush(
        tokens, codes, window
    )


@laws
@given(corpora, window_sizes)
def test_window_deviations_equal_their_twin(corpus, window):
    tokens, codes = arrays(corpus[0])
    share = token_share(tokens, codes, corpus[1])
    heaviest = np.argsort(-share, kind="stable")
    got = windows.window_deviations(tokens, codes, share, heaviest, window, int(tokens.sum()) // window)
    for fast, twin in zip(got, slow.window_deviations(tokens, codes, share, window), strict=True):
        assert_allclose(fast, twin, atol=1e-12)


@laws
@given(corpora, window_sizes)
def test_prefix_squares_equal_their_twin(corpus, window):
    tokens, codes = arrays(corpus[0])
    share = token_share(tokens, codes, corpus[1])
    expected = slow.prefix_squares(tokens, codes, share, window)
    assert_allclose(windows.prefix_squares(tokens, codes, share, window), expected, atol=1e-9)


def test_the_prefix_deviation_at_the_end_is_exactly_zero():
    tokens, codes = np.full(49, 10**9), np.arange(49, dtype=np.int32)
    squares = windows.prefix_squares(tokens, codes, np.full(49, 1 / 49), 10**9)
    assert squares[-1] == 0.0 < squares[:-1].min()


@laws
@given(corpora, window_sizes)
def test_window_counts_equal_their_twin_and_lose_no_token(corpus, window):
    tokens, codes = arrays(corpus[0])
    counts = windows.window_counts(tokens, codes, corpus[1], window)
    assert_array_equal(counts, slow.window_counts(tokens, codes, corpus[1], window))
    assert_array_equal(counts.sum(axis=0), np.bincount(codes, tokens, corpus[1]).astype(int))
    assert (counts.sum(axis=1)[:-1] == window).all()


def token_share(tokens: np.ndarray, codes: np.ndarray, n_values: int) -> np.ndarray:
    return np.bincount(codes, tokens, n_values) / max(tokens.sum(), 1)


@pytest.mark.parametrize("window", [10**9, 10**12])
def test_kernels_count_exactly_beyond_32_bits(window):
    tokens = np.array([3, 0, 5, 1, 7, 2], np.int64) * window
    codes = np.array([0, 1, 2, 1, 0, 2], np.int32)
    assert windows.distinct_split(tokens, codes, 3, window).tolist() == [1] * 18
    assert windows.distinct_split(tokens + 1, codes, 3, window).tolist() == slow_split(
        tokens + 1, codes, window
    )
    assert windows.window_counts(tokens, codes, 3, window).sum(axis=0).tolist() == [
        10 * window,
        window,
        7 * window,
    ]


def slow_split(tokens: np.ndarray, codes: np.ndarray, window: int) -> list[int]:
    """By intervals in Python's unbounded integers, where writing out every token is out of the question."""
    ends = [sum(tokens[: d + 1].tolist()) for d in range(len(tokens))]
    starts = [0, *ends[:-1]]
    return [
        len(
            {
                int(code)
                for code, start, end in zip(codes, starts, ends, strict=True)
                if max(start, at) < min(end, at + window)
            }
        )
        for at in range(0, ends[-1], window)
    ]
