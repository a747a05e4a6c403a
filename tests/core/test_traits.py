"""Trait codes: quantile bins and categories. Documents as items: every trait in tokens and in documents."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.core.order.items import (
    DOCUMENT_WEIGHT,
    design_effect,
    document_items,
)
from dagster_divorder.core.order.traits import (
    ManyCodes,
    bin_codes,
    category_codes,
    column_codes,
    quantile_edges,
)
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.orders import order

numbers = st.lists(st.one_of(st.floats(allow_infinity=True), st.integers(0, 5).map(float), st.just(np.nan)))
words = st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "c", "é", "", "(other)", "(missing)"])))
laws = settings(max_examples=examples(40), deadline=None)


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


def test_columns_in_chunks_and_dictionaries_and_of_other_types():
    parts = [pa.array(part).dictionary_encode() for part in (["x", None], ["y", "x"])]
    for column in (pa.chunked_array(parts), pa.array(["x", None, "y", "x"], pa.string_view())):
        for found in (category_codes(column), column_codes(column, bins=3)):
            assert found.codes.tolist() == [0, 2, 1, 0] and found.codes.dtype == np.int32
            assert found.names == ("x", "y", "(missing)")
    numbers = pa.array([1, None, 3, 4])
    chunks = pa.chunked_array([pa.array([1]), pa.array([None, 3, 4], pa.int64())])
    for column in (chunks, numbers.dictionary_encode(), numbers.cast(pa.decimal128(21, 2))):
        found = column_codes(column, bins=3)
        assert found.edges is not None and found.edges.tolist() == [3.0, 4.0]
        assert found.codes.tolist() == [0, 3, 1, 2] and found.codes.dtype == np.int32


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


TOKENS = np.array([4, 0, 10, 2])
TRAITS = {"cluster": np.array([1, 0, 1, 2], np.int32), "lang": np.array([0, 0, 1, 0], np.int32)}


def test_every_trait_enters_in_tokens_and_in_documents():
    made = document_items(TOKENS, TRAITS, {"cluster": 1.0, "lang": 0.5})
    # Groups: cluster (3 values), lang (2) in tokens, the same in documents of the mean length 4, then coarse
    # lengths (4).
    assert made.groups.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 4]
    assert made.weights.tolist() == [1.0, 0.5, DOCUMENT_WEIGHT, 0.5 * DOCUMENT_WEIGHT, DOCUMENT_WEIGHT]
    assert made.counts.toarray().tolist() == [
        [0, 4, 0, 4, 0, 0, 4, 0, 4, 0, 0, 0, 4, 0],
        [0, 0, 0, 0, 0, 4, 0, 0, 4, 0, 4, 0, 0, 0],
        [0, 10, 0, 0, 10, 0, 4, 0, 0, 4, 0, 0, 0, 4],
        [0, 0, 2, 2, 0, 0, 0, 4, 4, 0, 0, 4, 0, 0],
    ]


def test_values_of_a_list_share_the_tokens():
    tags = ManyCodes(np.array([0, 2, 3, 6]), np.array([2, 0, 1, 2, 1, 2], np.int32), ("a", "b", "c"))
    made = document_items([5, 3, 10], {"tags": tags, "lang": [0, 1, 0]})
    rows = made.counts.toarray()
    # The first of a list get what is over; a value that is named twice has two parts. The mean length is 6.
    assert rows[:, made.groups == 0].tolist() == [[2, 0, 3], [0, 3, 0], [0, 3, 7]]
    assert rows[:, made.groups == 2].tolist() == [[3, 0, 3], [0, 6, 0], [0, 2, 4]]
    assert rows[:, made.groups == 1].tolist() == [[5, 0], [0, 3], [10, 0]]


def test_below_within_1_every_trait_enters_in_roots_of_tokens_too():
    packed, batched = (document_items(TOKENS, TRAITS, within=within) for within in (1.0, 0.0))
    columns = packed.counts.shape[1]
    assert (batched.counts[:, :columns] != packed.counts).nnz == 0
    assert batched.groups[columns:].tolist() == [5, 5, 5, 6, 6]
    # sqrt(tokens x 4), of 4, 0, 10 and 2 tokens.
    assert batched.counts[:, columns:].toarray().tolist() == [
        [0, 4, 0, 4, 0],
        [0, 0, 0, 0, 0],
        [0, 6, 0, 0, 6],
        [0, 0, 3, 3, 0],
    ]
    assert batched.weights[5:].tolist() == batched.weights[2:4].tolist()
    assert batched.counts.data.dtype == np.int32


@given(
    documents=st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 3)), max_size=40),
    within=st.floats(0.0, 1.0),
    seed=st.integers(0, 5),
)
def test_any_within_orders_every_document_once(documents, within, seed):
    tokens, codes = (np.array([row[at] for row in documents], np.int64) for at in (0, 1))
    made = document_items(tokens, {"cluster": codes}, within=within)
    assert made.counts[:, made.groups == 0].sum() == tokens.sum()
    ordered = order(made.counts, made.groups, weights=made.weights, seed=seed)
    assert np.sort(ordered).tolist() == list(range(len(tokens)))
    assert (made.weights > 0).all() and (made.weights <= DOCUMENT_WEIGHT).all()
    assert np.array_equal(
        document_items(tokens, {"cluster": codes}, within=1).weights,
        document_items(tokens, {"cluster": codes}).weights,
    )


def test_the_design_effect_of_equal_lengths_and_of_none_is_1():
    assert (
        design_effect(np.full(7, 3)) == design_effect(np.zeros(4, int)) == design_effect(np.zeros(0)) == 1.0
    )
    assert design_effect(np.array([3, 0, 0])) == pytest.approx(3.0)


@pytest.mark.parametrize(
    "within", [float("nan"), -0.1, 2, "a", None, True, 1j, np.array([0.5])], ids=lambda value: repr(value)
)
def test_a_within_that_is_no_number_from_0_to_1_is_refused(within):
    with pytest.raises(InputError) as refused:
        document_items(TOKENS, TRAITS, within=within)
    assert str(refused.value).startswith(f"within is {within!r}; expected a number from 0")
    assert "leave it out" in str(refused.value)


@pytest.mark.parametrize("weight", [0, float("nan"), 2e6])
def test_a_weight_that_is_out_of_range_is_named(weight):
    with pytest.raises(InputError, match=f"'cluster' is {weight}; expected a number from 1e-06 to 1e.06"):
        document_items([1], {"cluster": [0]}, {"cluster": weight})


def test_lengths_of_all_tokens_make_the_coarse_bins():
    """Tokens that shares are of may be few of a long document's."""
    counted, lengths = np.full(100, 5), np.arange(1, 101)
    by_tokens, by_lengths = (
        document_items(counted, {"cluster": np.zeros(100, int)}, lengths=given) for given in (None, lengths)
    )
    assert (by_tokens.groups == 2).sum() == 1
    assert (by_lengths.groups == 2).sum() == 16
    in_tokens = by_lengths.counts[:, by_lengths.groups == 0]
    assert in_tokens.sum() == counted.sum()
