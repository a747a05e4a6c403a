"""Trait codes: quantile bins and categories."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.core.order.traits import bin_codes, category_codes, column_codes, quantile_edges
from dagster_divorder.errors import InputError
from tests.conftest import examples

numbers = st.lists(st.one_of(st.floats(allow_infinity=True), st.integers(0, 5).map(float), st.just(np.nan)))
words = st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "c", "é", "", "(other)", "(missing)"])))
laws = settings(max_examples=examples(40), deadline=None)


# ---- numbers


@laws
@given(numbers, st.integers(1, 8))
def test_edges_rise_and_leave_no_bin_empty(values, bins):
    edges = quantile_edges(values, bins)
    assert len(edges) <= bins - 1 and (np.diff(edges) > 0).all()
    codes = bin_codes(values, edges)
    present = ~np.isnan(np.array(values, np.float64))
    assert (codes[~present] == len(edges) + 1).all()
    if present.any():
        assert set(codes[present].tolist()) == set(range(len(edges) + 1))


@laws
@given(numbers, st.lists(st.integers(-3, 8).map(float), unique=True, max_size=5).map(sorted))
def test_codes_count_the_edges_at_or_below_a_value(values, edges):
    expected = [len(edges) + 1 if np.isnan(v) else sum(edge <= v for edge in edges) for v in values]
    codes = bin_codes(values, edges)
    assert codes.tolist() == expected and codes.dtype == np.int32


@laws
@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 5))
def test_bins_of_distinct_values_are_equally_full(n, bins, seed):
    values = np.random.default_rng(seed).permutation(n)
    sizes = np.bincount(bin_codes(values, quantile_edges(values, bins)))
    assert len(sizes) == min(n, bins)
    assert n < bins or np.ptp(sizes) <= 1


@pytest.mark.parametrize("rare", [1, 30])
def test_a_rare_value_is_not_lost_among_equal_ones(rare):
    """Labels of 0 and 1 are two bins, as false and true are two values."""
    labels = np.arange(60) < rare
    numbers, booleans = (column_codes(pa.array(of), bins=4) for of in (labels.astype(int), labels))
    assert numbers.names == ("below 1", "1 and above", "(missing)")
    assert len({*zip(numbers.codes.tolist(), booleans.codes.tolist(), strict=True)}) == 2


@pytest.mark.parametrize(
    ("numbers", "bins", "names"),
    [
        (np.arange(100), 4, ["below 25", "25 to 49", "50 to 74", "75 and above"]),
        (np.arange(100) / 8, 3, ["below 4.125", "4.125 to below 8.25", "8.25 and above"]),
        ([5.0, 5.0], 3, ["all"]),
        (
            1 + np.arange(3) / 1e8,
            3,
            ["below 1.00000001", "1.00000001 to below 1.00000002", "1.00000002 and above"],
        ),
    ],
    ids=["whole", "broken", "one", "close"],
)
def test_names_of_bins(numbers, bins, names):
    assert column_codes(pa.array(numbers), bins=bins).names == (*names, "(missing)")


def test_pinned_edges_stay_when_data_is_appended():
    first = column_codes(pa.array(range(100)), bins=5)
    later = column_codes(pa.array(range(-50, 300)), bins=5, edges=first.edges)
    assert_array_equal(later.codes[50:150], first.codes)
    assert later.names == first.names
    assert (later.codes[:50] == 0).all() and (later.codes[150:] == 4).all()


# ---- categories


@laws
@given(words, st.integers(1, 6), st.randoms(use_true_random=False))
def test_categories_equal_a_plain_count(values, max_values, random):
    found = category_codes(pa.array(values, pa.string()), max_values)
    counts = pd.Series(values, dtype=object).dropna().value_counts().to_dict()
    ranked = sorted(counts, key=lambda name: (-counts[name], name.encode()))
    kept = ranked if len(ranked) <= max_values else ranked[: max_values - 1]
    rest = len(kept)
    missing = rest + (len(ranked) > len(kept))
    expected = [missing if v is None else kept.index(v) if v in kept else rest for v in values]
    assert found.codes.tolist() == expected
    assert list(found.names[:rest]) == kept
    assert len(found.names) == missing + (None in values) == len(set(found.names))

    shuffled = random.sample(range(len(values)), len(values))
    again = category_codes(pa.array([values[i] for i in shuffled], pa.string()), max_values)
    assert again.names == found.names
    assert again.codes.tolist() == found.codes[shuffled].tolist()


@pytest.mark.parametrize("of", [pa.null(), pa.string(), pa.bool_()])
def test_a_column_of_nulls_and_one_of_nothing(of):
    found = column_codes(pa.array([None, None], of), bins=3)
    assert found.codes.tolist() == [0, 0] and found.names == ("(missing)",)
    empty = column_codes(pa.chunked_array([], of), bins=3)
    assert empty.codes.tolist() == [] and empty.names == ()


def test_columns_that_cannot_be_coded_are_refused_by_name():
    with pytest.raises(InputError, match="tags holds list"):
        column_codes(pa.array([["a"]]), bins=3, name="tags")
    with pytest.raises(
        InputError, match=r"tags has 4 distinct values in 5 rows, .*; balance values that repe"
    ):
        category_codes(pa.array([None, *"aabcd"]), 3, balanced="tags")
