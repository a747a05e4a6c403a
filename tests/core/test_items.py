"""Documents as items: every trait in tokens and in documents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.core.order.items import (
    COARSE_LENGTH_BINS,
    DOCUMENT_WEIGHT,
    design_effect,
    document_items,
)
from dagster_divorder.core.order.traits import ManyCodes
from dagster_divorder.errors import InputError
from tests.orders import order
from tests.twins.metrics import distinct, window_variation

TOKENS = np.array([4, 0, 10, 2])
ONE_TRAIT = {"cluster": np.arange(5_000) % 7}
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
    ordered = order(made.counts, made.groups, weights=made.weights, seed=seed)
    assert np.sort(ordered).tolist() == list(range(len(tokens)))
    assert (made.weights > 0).all() and (made.weights <= DOCUMENT_WEIGHT).all()
    assert np.array_equal(
        document_items(tokens, {"cluster": codes}, within=1).weights,
        document_items(tokens, {"cluster": codes}).weights,
    )


def test_documents_weigh_more_as_within_rises_and_as_lengths_differ():
    random = np.random.default_rng(0)
    for sigma, least in ((0.0, 4.0), (1.0, 4.0 * np.e), (4.0, DOCUMENT_WEIGHT)):
        tokens = np.ceil(random.lognormal(9.0, sigma, 5_000)).astype(np.int64)
        weights = [
            document_items(tokens, ONE_TRAIT, within=within).weights[1]
            for within in (0.0, 0.25, 0.5, 0.75, 1.0)
        ]
        assert weights == sorted(weights)
        assert weights[0] == pytest.approx(least, rel=0.2)
        assert weights[-1] == DOCUMENT_WEIGHT


def test_the_design_effect_of_equal_lengths_and_of_none_is_1():
    assert (
        design_effect(np.full(7, 3)) == design_effect(np.zeros(4, int)) == design_effect(np.zeros(0)) == 1.0
    )
    assert design_effect(np.array([3, 0, 0])) == pytest.approx(3.0)


TAILED = 8_000
"""Documents of heavy-tailed length, of 20 labels."""


def tailed() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    tokens = np.ceil(random.lognormal(5.0, 1.2, TAILED)).astype(np.int64)
    return tokens, random.choice(20, TAILED, p=random.dirichlet(np.full(20, 3.0)))


def judged(ordered: np.ndarray) -> tuple[float, float, float]:
    """(mean total variation in 65,536 tokens, labels in 2,048 tokens, how far a tenth's mean log length is from the
    whole's at most, in standard errors)."""
    tokens, label = tailed()
    windows = window_variation(tokens[ordered], label[ordered], 20, 65_536)
    logs = np.log(tokens)
    scores = ((logs - logs.mean()) / logs.std())[ordered].reshape(10, -1)
    topics = np.array(distinct(tokens[ordered], label[ordered], 2_048))
    return windows.mean(), topics.mean(), np.abs(scores.mean(axis=1)).max() * (TAILED / 10) ** 0.5


def test_windows_of_documents_near_the_mix_as_within_falls_and_lengths_do_not_drift():
    tokens, label = tailed()
    shuffled, shuffled_topics, _ = judged(np.random.default_rng(0).permutation(TAILED))
    found = []
    for within in (0.0, 0.5, 1.0):
        made = document_items(tokens, {"label": label}, within=within)
        windows, topics, drift = judged(order(made.counts, made.groups, weights=made.weights))
        found.append(windows)
        assert topics > 1.15 * shuffled_topics
        assert drift < 4.0
    assert found[0] < 0.95 * found[1] < 0.95 * 0.85 * found[2]
    assert found[2] < 0.8 * shuffled
    # Nearly sorted by length: its windows are near the mix, and it drifts.
    by_share = judged(order(made.counts, made.groups, strategy="token_share_greedy"))
    assert by_share[0] < found[0]
    assert by_share[2] > 40.0


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
