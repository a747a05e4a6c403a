"""The nearest documents of each cluster, against the sorted twin."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.core.kernels import members
from tests.conftest import examples
from tests.twins import members as slow_members


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 60), st.integers(1, 6), st.integers(1, 7), st.integers(0, 1000))
def test_it_equals_sorting(n: int, clusters: int, kept: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(-1, clusters + 2, n).astype(np.int32)
    # Few distances, so that ties are many.
    distances = (random.integers(0, 4, n) / 4).astype(np.float32)
    ties = random.permutation(n).astype(np.uint64) + np.uint64(1 << 63)
    found, expected = np.full((2, clusters, kept), 7, np.int64)
    members.nearest_members(labels, distances, ties, found)
    slow_members.nearest_members(labels, distances, ties, expected)
    assert_array_equal(found, expected)
