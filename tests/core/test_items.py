"""Documents as items: every trait in tokens and in documents."""

import numpy as np
import pytest

from dagster_divorder.core.items import COARSE_LENGTH_BINS, DOCUMENT_WEIGHT, document_items
from dagster_divorder.core.order import order
from dagster_divorder.core.traits import ManyCodes
from dagster_divorder.errors import InputError

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


def test_a_document_without_tokens_keeps_its_label():
    made = document_items(np.zeros(4, int), TRAITS)
    ordered = order(made.counts, made.groups, strategy="round_robin", within_cluster="original")
    assert ordered.tolist() == [1, 0, 3, 2]


def test_the_first_trait_labels_and_measures_the_items():
    made = document_items([7, 1, 2, 9], {"lang": [1, 0, 1, 1], "cluster": [0, 1, 2, 3]})
    by_length = order(made.counts, made.groups, strategy="round_robin", within_cluster="length-asc")
    assert by_length.tolist() == [1, 2, 0, 3]


def test_values_of_a_list_share_the_tokens():
    tags = ManyCodes(np.array([0, 2, 3, 6]), np.array([2, 0, 1, 2, 1, 2], np.int32), ("a", "b", "c"))
    made = document_items([5, 3, 10], {"tags": tags, "lang": [0, 1, 0]})
    rows = made.counts.toarray()
    # The first of a list get what is over; a value that is named twice has two parts. The mean length is 6.
    assert rows[:, made.groups == 0].tolist() == [[2, 0, 3], [0, 3, 0], [0, 3, 7]]
    assert rows[:, made.groups == 2].tolist() == [[3, 0, 3], [0, 6, 0], [0, 2, 4]]
    assert rows[:, made.groups == 1].tolist() == [[5, 0], [0, 3], [10, 0]]
    assert sorted(order(made.counts, made.groups, weights=made.weights).tolist()) == [0, 1, 2]


def test_lengths_have_coarse_bins_of_their_own():
    made = document_items(np.arange(1, 1001), {"cluster": np.zeros(1000, int)})
    coarse = made.counts[:, made.groups == 2].toarray() > 0
    assert coarse.shape[1] == COARSE_LENGTH_BINS
    assert coarse.sum(axis=1).tolist() == [1] * 1000
    assert set(coarse.sum(axis=0)) <= {62, 63}


def test_arrays_are_lean():
    made = document_items(TOKENS, TRAITS)
    assert made.counts.indices.dtype == made.counts.data.dtype == np.int32
    assert document_items([2**31, 1], {"cluster": [0, 1]}).counts.data.dtype == np.int64


def test_trillions_of_tokens_are_counted_exactly():
    tokens = np.full(1000, 2**40 + 1)
    made = document_items(tokens, {"cluster": np.arange(1000) % 3})
    assert made.counts[:, :3].sum() == tokens.sum()
    assert made.counts[:, 3:6].sum() == tokens.sum()


def test_a_corpus_without_documents_makes_no_item():
    made = document_items([], {"cluster": []})
    assert made.counts.shape[0] == 0
    assert order(made.counts, made.groups, weights=made.weights).shape == (0,)


@pytest.mark.parametrize(
    ("tokens", "traits", "weights", "message"),
    [
        pytest.param([[1]], {"cluster": [0]}, None, r"tokens.*\(1, 1\)", id="tokens not flat"),
        pytest.param([1.5], {"cluster": [0]}, None, "tokens is float64", id="broken tokens"),
        pytest.param([-1], {"cluster": [0]}, None, "tokens holds -1", id="negative tokens"),
        pytest.param([1, 2], {"cluster": [0]}, None, r"trait 'cluster'.*\(1,\).*\(2,\)", id="codes shape"),
        pytest.param([1], {"cluster": [-1]}, None, "trait 'cluster' holds -1", id="negative code"),
        pytest.param([1], {}, None, "traits is empty", id="no trait"),
        pytest.param([1], {"cluster": [0]}, {}, r"weights names \[\].*\['cluster'\]", id="weight missing"),
        pytest.param(
            [1], {"cluster": [0]}, {"cluster": 1, "lang": 1}, r"\['cluster', 'lang'\]", id="weight of nothing"
        ),
        pytest.param([1], {"cluster": [0]}, {"cluster": 0}, "'cluster' is 0", id="weight 0"),
        pytest.param([1], {"cluster": [0]}, {"cluster": float("nan")}, "'cluster' is nan", id="weight NaN"),
    ],
)
def test_bad_input_is_named(tokens, traits, weights, message):
    with pytest.raises(InputError, match=message):
        document_items(tokens, traits, weights)
