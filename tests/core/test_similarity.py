"""Pairwise cosine similarities against the dense formula."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dagster_divorder.core.vectors import similarity
from dagster_divorder.core.vectors.similarity import cosine_statistics
from dagster_divorder.errors import InputError
from tests.conftest import examples


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(2, 60), st.integers(1, 9), st.integers(0, 100))
def test_statistics_equal_the_dense_formula(n, d, seed):
    rng = np.random.default_rng(seed)
    drawn = (rng.normal(size=(n, d)) * 10.0 ** rng.integers(-30, 30, (n, 1))).astype(np.float32)
    drawn[rng.random(n) < 0.1] = 0.0
    norms = np.linalg.norm(drawn.astype(np.float64), axis=1, keepdims=True)
    unit = drawn / np.where(norms > 0, norms, 1)
    pairs = (unit @ unit.T)[np.triu_indices(n, 1)]
    expected = [n, len(pairs), pairs.mean(), pairs.std(), *np.percentile(pairs, [0, 5, 50, 95, 100])]
    found = cosine_statistics(drawn)
    assert [*found][-1] == "high_sim_pairs_gt_0.9"
    assert_allclose([*found.values()], [*expected, (pairs > 0.9).sum()], atol=2e-6)
    assert -1 <= found["min"] <= found["max"] <= 1


@pytest.mark.parametrize("n", [0, 1])
def test_without_a_pair_there_are_no_statistics(n):
    found = cosine_statistics(np.ones((n, 3)))
    assert (found["rows"], found["pairs"], found["mean"], found["p95"]) == (n, 0, None, None)
    json.dumps(found, allow_nan=False)


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
