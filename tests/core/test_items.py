"""Documents as items: every trait in tokens and in documents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.core.order.items import (
    DOCUMENT_WEIGHT,
    design_effect,
    document_items,
)
from dagster_divorder.core.order.traits import ManyCodes
from dagster_divorder.errors import InputError
from tests.orders import order

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
