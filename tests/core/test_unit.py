"""Vectors of length 1: what they are, and that a batch changes no byte."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.vectors import unit
from dagster_divorder.core.vectors.unit import unit_rows
from tests.conftest import examples


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(0, 9),
    st.integers(1, 300),
    st.integers(0, 1000),
    st.sampled_from(
        [(np.float64, 1e-300), (np.float64, 1e300), (np.float32, 1e-30), (np.float32, 1e30), (np.float16, 1)]
    ),
)
def test_unit_rows_have_length_one_and_their_direction(n, dims, seed, kind):
    dtype, scale = kind
    vectors = (np.random.default_rng(seed).normal(size=(n, dims)) * scale).astype(dtype)
    vectors[::3] = 0.0
    units = unit_rows(vectors)
    assert units.dtype == np.float32
    for row, found in zip(vectors.astype(float), units, strict=True):
        length = math.hypot(*row)
        assert found.tolist() == pytest.approx([x / length for x in row] if length else row, abs=1e-7)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 40), st.integers(1, 300), st.integers(0, 1000))
def test_the_batch_changes_no_byte(rows, dims, seed):
    vectors = np.random.default_rng(seed).normal(size=(60, dims)).astype(np.float32)
    whole = unit_rows(vectors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "BLOCK", 7 * dims)
        parts = [unit_rows(vectors[at : at + rows]) for at in range(0, 60, rows)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
