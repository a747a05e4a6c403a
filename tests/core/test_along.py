"""What lies where along an order: bins and quantiles against their slow twins."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.core.measure.along import SAMPLED, binned, quantiles_along

documents = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=40)


@given(st.lists(st.integers(0, 50), max_size=200), st.integers(1, 60))
def test_every_window_is_in_one_bin(values: list[int], bins: int) -> None:
    found = binned(values, bins)
    assert len(found.at) == min(bins, len(values))
    if not values:
        return
    edges = [at * len(values) // len(found.at) for at in range(len(found.at) + 1)]
    for at, (first, last) in enumerate(pairwise(edges)):
        part = values[first:last]
        assert found.mean[at] == pytest.approx(np.mean(part))
        assert (found.low[at], found.high[at]) == (min(part), max(part))
        assert found.at[at] == pytest.approx((first + last) / 2 / len(values))
        assert abs(len(part) - len(values) / len(found.at)) < 1


@given(documents, st.integers(1, 7))
def test_quantiles_are_those_of_the_tokens_one_by_one(of: list[tuple[int, int]], columns: int) -> None:
    tokens, values = np.array(of, np.int64).reshape(-1, 2).T
    quantiles = np.array([0.1, 0.5, 0.9])
    found = quantiles_along(tokens, values, columns, quantiles)
    assert found.shape == (columns, 3)
    # Every run of tokens has a share of the sample that is its own but for a token.
    off = len(of) / SAMPLED
    # A `columns`-th of a token at a time, so that the slices' edges are whole.
    for column, part in enumerate(np.repeat(values, tokens * columns).reshape(columns, -1)):
        if not len(part):
            assert np.isnan(found[column]).all()
            continue
        low, high = (np.quantile(part, quantiles + side, method="inverted_cdf") for side in (-off, off))
        assert (low <= found[column]).all() and (found[column] <= high).all()
