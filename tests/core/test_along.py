"""What lies where along an order: bins and quantiles against their slow twins, and the largest values of a trait."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.core.measure.along import binned, largest, quantiles_along
from dagster_divorder.errors import InputError

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


@given(documents, st.integers(1, 7), st.randoms())
def test_quantiles_are_those_of_the_tokens_one_by_one(
    of: list[tuple[int, int]], columns: int, random
) -> None:
    tokens, values = (
        (np.array(column, np.int64) for column in zip(*of, strict=True)) if of else (np.zeros(0, int),) * 2
    )
    order = list(range(len(of)))
    random.shuffle(order)
    quantiles = (0.1, 0.5, 0.9)
    found = quantiles_along(order, tokens, values, columns, quantiles)
    total = int(tokens.sum())
    assert found.shape == (columns, 3)
    if total == 0:
        assert np.isnan(found).all()
        return
    # A `columns`-th of a token at a time, so that the slices' edges are whole.
    stream = np.repeat(values[order], tokens[order] * columns).reshape(columns, total)
    for column, part in enumerate(stream):
        expected = [np.quantile(part, q, method="inverted_cdf") for q in quantiles]
        assert found[column].tolist() == expected


def test_more_tokens_than_64_bits_hold_are_refused() -> None:
    with pytest.raises(InputError, match="overflow 64 bits"):
        quantiles_along([0], [1 << 60], [1], 100, (0.5,))


@given(documents, st.integers(0, 8))
def test_the_largest_values_are_kept_and_all_others_are_one(of: list[tuple[int, int]], keep: int) -> None:
    tokens, codes = (
        (np.array(column, np.int64) for column in zip(*of, strict=True)) if of else (np.zeros(0, int),) * 2
    )
    sizes = np.bincount(codes, tokens, 6) if of else np.zeros(6)
    found = largest(tokens, codes, 6, keep)
    kept = found.values.tolist()
    assert kept == sorted(np.flatnonzero(sizes).tolist(), key=lambda value: (-sizes[value], value))[:keep]
    assert found.tokens.tolist() == sizes[kept].tolist()
    assert found.others == np.count_nonzero(sizes) - len(kept)
    assert found.other_tokens == sizes.sum() - sizes[kept].sum()
    places = [kept.index(code) if code in kept else len(kept) for code in codes.tolist()]
    there = tokens > 0
    assert found.codes[there].tolist() == np.array(places, int)[there].tolist()
    assert found.codes.size == 0 or found.codes.max() < max(1, found.count)
