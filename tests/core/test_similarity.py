"""Pairwise cosine similarities against the dense formula."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from threadpoolctl import threadpool_limits

from dagster_divorder.core.vectors import similarity
from dagster_divorder.core.vectors.similarity import cosine_statistics
from dagster_divorder.errors import InputError
from tests.conftest import examples


def dense(vectors: np.ndarray) -> dict[str, float]:
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1)
    pairs = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    p5, p50, p95 = np.percentile(pairs, [5, 50, 95])
    extremes = {"min": pairs.min(), "p5": p5, "p50": p50, "p95": p95, "max": pairs.max()}
    high = {"high_sim_pairs_gt_0.9": (pairs > 0.9).sum()}
    return {
        "rows": len(unit),
        "pairs": len(pairs),
        "mean": pairs.mean(),
        "std": pairs.std(),
        **extremes,
        **high,
    }


def vectors(n: int, d: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(n, d)).astype(np.float32) * 10.0 ** rng.integers(-6, 6, (n, 1))
    drawn[rng.random(n) < 0.1] = 0.0
    return drawn.astype(np.float32)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(2, 60), st.integers(1, 9), st.integers(0, 100))
def test_statistics_equal_the_dense_formula(n, d, seed):
    drawn = vectors(n, d, seed)
    found, expected = cosine_statistics(drawn), dense(drawn)
    assert found.keys() == expected.keys()
    assert_allclose([*found.values()], [*expected.values()], atol=2e-6)


def test_blocks_join_without_a_gap():
    n = 2 * similarity.BLOCK_ROWS + 77
    drawn = vectors(n, 5, 0)
    assert_allclose([*cosine_statistics(drawn).values()], [*dense(drawn).values()], atol=2e-6)


def test_lengths_of_vectors_do_not_matter_even_where_squares_overflow():
    tiny_and_huge = np.array([[1e-30, 0], [1e30, 1e30]], np.float32)
    assert_allclose(cosine_statistics(tiny_and_huge)["mean"], np.sqrt(0.5), rtol=1e-6)


def test_no_cosine_leaves_its_range():
    found = cosine_statistics(np.tile(np.float32([0.1, 0.7, 0.3]), (50, 1)))
    assert 1 - 1e-6 < found["min"] <= found["max"] <= 1.0


@pytest.mark.parametrize("n", [0, 1])
def test_without_a_pair_there_are_no_statistics(n):
    found = cosine_statistics(np.ones((n, 3)))
    assert (found["rows"], found["pairs"], found["mean"], found["p95"]) == (n, 0, None, None)
    json.dumps(found, allow_nan=False)


def test_threads_do_not_change_the_bytes():
    drawn = vectors(700, 1000, 3)  # of this size OpenBLAS rounds differently on two threads
    with threadpool_limits(limits=1):
        one = cosine_statistics(drawn)
    with threadpool_limits(limits=2):
        assert cosine_statistics(drawn) == one


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.full((2, 2), np.nan), "NaN"),
        (np.ones(3), r"\(3,\)"),
        (np.ones((similarity.MAX_ROWS + 1, 1)), "sample first"),
    ],
)
def test_vectors_that_cannot_be_compared_are_refused(bad, message):
    with pytest.raises(InputError, match=message):
        cosine_statistics(bad)
