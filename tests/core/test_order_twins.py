"""Every fast strategy against its slow, obvious twin, on random problems."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from tests.conftest import examples
from tests.orders import order
from tests.twins import order as slow_order

twin_test = settings(deadline=None, max_examples=examples(25))
labelled = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=40)
far_apart = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**40)), min_size=1, max_size=25)


def items(pairs: list[tuple[int, int]]) -> tuple[csr_matrix, list[int], list[int]]:
    """(one-hot counts, labels, lengths); stored zeros keep the label of items without tokens."""
    labels, lengths = map(list, zip(*pairs, strict=True))
    indptr = np.arange(len(pairs) + 1)
    return csr_matrix((lengths, labels, indptr), shape=(len(pairs), 6)), labels, lengths


def shuffled(labels: list[int], lengths: list[int]) -> tuple[np.ndarray, list[int], list[int]]:
    """The shuffle in which the first of equal items goes, and labels and lengths in it."""
    shuffle = np.random.default_rng(0).permutation(len(labels))
    return shuffle, [labels[item] for item in shuffle], [lengths[item] for item in shuffle]


@given(pairs=labelled)
@twin_test
def test_round_robin_equals_its_twin(pairs):
    counts, labels, _ = items(pairs)
    expected = slow_order.round_robin(slow_order.label_queues(labels))
    assert order(counts, [0] * 6, strategy="round_robin", within_cluster="original").tolist() == expected


@given(pairs=labelled)
@twin_test
def test_stratified_equals_its_twin(pairs):
    counts, labels, _ = items(pairs)
    queues = slow_order.label_queues(labels)
    expected = slow_order.largest_deficit_first(queues)
    assert order(counts, [0] * 6, strategy="stratified", within_cluster="original").tolist() == expected


@pytest.mark.parametrize("pairs_of", [labelled, far_apart], ids=["short", "trillions of tokens"])
def test_token_share_greedy_equals_its_twin(pairs_of):
    @given(pairs=pairs_of)
    @twin_test
    def check(pairs):
        counts, labels, lengths = items(pairs)
        shuffle, labels, lengths = shuffled(labels, lengths)
        expected = shuffle[slow_order.token_share_greedy(labels, lengths)].tolist()
        assert order(counts, [0] * 6, strategy="token_share_greedy").tolist() == expected

    check()


@given(pairs=labelled, seed=st.integers(0, 9))
@twin_test
def test_jittered_spaces_each_label_evenly(pairs, seed):
    counts, labels, _ = items(pairs)
    result = order(counts, [0] * 6, strategy="jittered", seed=seed).tolist()
    # Between two neighbours of a label with n items lies 1/n of the stamps' range, so n' / n items of another one,
    # give or take one.
    sizes = {label: labels.count(label) for label in labels}
    for label, size in sizes.items():
        at = [place for place, item in enumerate(result) if labels[item] == label]
        for one, next_ in itertools.pairwise(at):
            between = [labels[item] for item in result[one + 1 : next_]]
            for other in set(sizes) - {label}:
                assert abs(between.count(other) - sizes[other] / size) <= 1
