"""Every fast strategy against its slow, obvious twin, on random problems."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.core.kernels import order_balance, reference_order
from dagster_divorder.core.order import balanced, order

twin_test = settings(deadline=None, max_examples=60)
labelled = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=40)
far_apart = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**40)), min_size=1, max_size=25)


def items(pairs: list[tuple[int, int]]) -> tuple[csr_matrix, list[int], list[int]]:
    """(one-hot counts, labels, lengths); stored zeros keep the label of items without tokens."""
    labels, lengths = map(list, zip(*pairs, strict=True))
    indptr = np.arange(len(pairs) + 1)
    return csr_matrix((lengths, labels, indptr), shape=(len(pairs), 6)), labels, lengths


@given(pairs=labelled)
@twin_test
def test_round_robin_equals_its_twin(pairs):
    counts, labels, _ = items(pairs)
    expected = reference_order.round_robin(reference_order.label_queues(labels))
    assert order(counts, [0] * 6, strategy="round_robin").tolist() == expected


@given(pairs=labelled)
@twin_test
def test_stratified_equals_its_twin(pairs):
    counts, labels, _ = items(pairs)
    queues = reference_order.label_queues(labels)
    expected = reference_order.largest_deficit_first(queues, [1] * len(labels))
    assert order(counts, [0] * 6, strategy="stratified").tolist() == expected


@pytest.mark.parametrize("pairs_of", [labelled, far_apart], ids=["short", "trillions of tokens"])
def test_token_deficit_equals_its_twin(pairs_of):
    @given(pairs=pairs_of)
    @twin_test
    def check(pairs):
        counts, labels, lengths = items(pairs)
        expected = reference_order.largest_deficit_first(reference_order.label_queues(labels), lengths)
        assert order(counts, [0] * 6, strategy="token_deficit").tolist() == expected

    check()


@pytest.mark.parametrize("pairs_of", [labelled, far_apart], ids=["short", "trillions of tokens"])
def test_token_share_greedy_equals_its_twin(pairs_of):
    @given(pairs=pairs_of)
    @twin_test
    def check(pairs):
        counts, labels, lengths = items(pairs)
        expected = reference_order.token_share_greedy(labels, lengths)
        assert order(counts, [0] * 6, strategy="token_share_greedy").tolist() == expected

    check()


@given(pairs=labelled, bin_size=st.integers(1, 30))
@twin_test
def test_bin_packing_equals_its_twin(pairs, bin_size):
    counts, labels, lengths = items(pairs)
    expected = reference_order.bin_packing(labels, lengths, bin_size)
    assert order(counts, [0] * 6, strategy="bin_packing", sequence_length=bin_size).tolist() == expected


@given(pairs=labelled)
@twin_test
def test_within_cluster_queues_by_length(pairs):
    counts, labels, lengths = items([(0, length) for _, length in pairs])
    rising = sorted(range(len(labels)), key=lambda item: lengths[item])
    riffled = [item for pair in itertools.zip_longest(rising, rising[::-1]) for item in pair][: len(rising)]
    for name, expected in (
        ("original", list(range(len(labels)))),
        ("length-asc", rising),
        ("length-desc", rising[::-1]),
        ("length-riffle", riffled),
    ):
        for strategy in ("round_robin", "stratified", "token_deficit"):
            result = order(counts, [0] * 6, strategy=strategy, within_cluster=name)
            assert result.tolist() == expected, (name, strategy)


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


@st.composite
def rows_of_reals(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (M, J) of reals, so that only equal rows tie (and some are equal), groups in any column order, and pace."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_items, n_values = draw(st.integers(1, 30)), draw(st.integers(1, 8))
    groups = np.unique(random.integers(0, 3, n_values), return_inverse=True)[1].astype(np.int32)
    rows = random.lognormal(size=(n_items, n_values)) * (random.random((n_items, n_values)) < 0.6)
    pace = random.normal(size=n_items)
    copies = random.integers(0, n_items, n_items // 3)
    rows[copies], pace[copies] = rows[0], pace[0]
    return rows.astype(np.float32).astype(np.float64), groups, pace.astype(np.float32).astype(np.float64)


def kernel_arguments(rows: np.ndarray, groups: np.ndarray, pace: np.ndarray) -> tuple:
    """indptr, indices, values, groups, shares, pace."""
    counts = csr_matrix(rows)
    indices, values = counts.indices.astype(np.int32), counts.data.astype(np.float32)
    shares = order_balance.scale_and_share(indices, values, groups, np.ones(groups.max() + 1, np.float32))
    return counts.indptr.astype(np.int64), indices, values, groups, shares, pace.astype(np.float32)


def dense(rows: np.ndarray, groups: np.ndarray, pace: np.ndarray) -> np.ndarray:
    return np.column_stack([reference_order.centred(rows, groups), pace])


@given(problem=rows_of_reals())
@twin_test
def test_signed_pass_equals_its_dense_twin(problem):
    stream = np.random.default_rng(0).permutation(len(problem[0]))
    fast = order_balance.sign_pass(stream, *kernel_arguments(*problem))
    assert fast.tolist() == reference_order.sign_pass(stream.tolist(), dense(*problem))


@given(problem=rows_of_reals(), pool=st.integers(1, 40))
@twin_test
def test_pool_equals_its_dense_twin(problem, pool):
    stream = np.random.default_rng(0).permutation(len(problem[0]))
    fast = order_balance.best_of_pool(stream, *kernel_arguments(*problem), pool)
    assert fast.tolist() == reference_order.best_of_pool(stream.tolist(), dense(*problem), pool)


@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=25),
    pool=st.integers(1, 30),
)
@twin_test
def test_pool_takes_a_best_candidate_however_many_tie(rows, pool):
    problem = np.array(rows, np.float64), np.array([0, 1, 0, 1], np.int32), np.zeros(len(rows))
    stream = list(range(len(rows)))
    centred = dense(*problem)
    deviation = np.zeros(5)
    for item in order_balance.best_of_pool(np.array(stream), *kernel_arguments(*problem), pool):
        squares = {one: ((deviation + centred[one]) ** 2).sum() for one in stream[:pool]}
        assert squares[item] <= min(squares.values()) + 1e-9
        stream.remove(item)
        deviation += centred[item]


def test_equal_items_leave_the_pool_as_they_are_numbered():
    rows = np.tile([[1.0, 2.0, 0.5], [2.0, 0.0, 0.1]], (200, 1))
    stream = np.random.default_rng(0).permutation(len(rows))
    arguments = kernel_arguments(rows, np.zeros(3, np.int32), np.tile([0.25, -0.25], 200))
    result = order_balance.best_of_pool(stream, *arguments, len(rows))
    assert result[result % 2 == 0].tolist() == list(range(0, 400, 2))
    assert result[result % 2 == 1].tolist() == list(range(1, 400, 2))


@given(problem=rows_of_reals(), seed=st.integers(0, 5))
@twin_test
def test_balanced_is_passes_then_pool_with_weights_and_pace(problem, seed):
    rows, groups, _ = problem
    weights = np.array([1.0, 4.0, 16.0])[: groups.max() + 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balanced, "PASSES", 2)
        patch.setattr(balanced, "POOL", 5)
        fast = order(csr_matrix(rows), groups, weights=weights, seed=seed)
    sizes = rows[:, groups == 0].sum(axis=1)
    centred = np.column_stack(
        [
            reference_order.centred(rows, groups) * np.sqrt(weights)[groups],
            np.sqrt(balanced.PACE) * (sizes - sizes.mean()),
        ]
    )
    slow = np.random.default_rng(seed).permutation(len(rows)).tolist()
    for _ in range(2):
        slow = reference_order.sign_pass(slow, centred)
    assert fast.tolist() == reference_order.best_of_pool(slow, centred, 5)
