"""Strategies and their kernels against slow, obvious twins, on random problems."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.core.kernels import order_balance, order_greedy
from dagster_divorder.core.order import balanced
from tests.conftest import examples
from tests.orders import order
from tests.twins import order as slow_order

twin_test = settings(deadline=None, max_examples=examples(25))


@st.composite
def rows_of_reals(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (M, J) of reals, so that only equal rows tie (and some are equal), groups in any column order, weights.

    Sometimes all rows of a group sum to the same, and sometimes to the same as in another group.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_items, n_values = draw(st.integers(1, 30)), draw(st.integers(1, 8))
    groups = np.unique(random.integers(0, 3, n_values), return_inverse=True)[1].astype(np.int32)
    rows = random.lognormal(size=(n_items, n_values)) * (random.random((n_items, n_values)) < 0.6)
    rows[random.integers(0, n_items, n_items // 3)] = rows[0]
    if draw(st.booleans()):
        # Whole numbers, each group filled up to the same sum.
        rows = np.floor(20 * rows)
        for group in range(groups.max() + 1):
            column = np.flatnonzero(groups == group)[0]
            rows[:, column] += 2000 - rows[:, groups == group].sum(axis=1)
    return rows, groups, np.array([1.0, 4.0, 0.5])[: groups.max() + 1]


def rows_of(
    rows: np.ndarray, groups: np.ndarray, weights: np.ndarray, dense: np.ndarray | None = None
) -> order_greedy.SparseItems:
    counts = csr_matrix(rows)
    dense = coordinates(len(rows), 0) if dense is None else dense
    return order_greedy.SparseItems(
        counts.indptr.astype(np.int64), counts.indices.astype(np.int32), counts.data, groups, weights, dense
    )


def coordinates(items: int, dims: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(items, dims)).astype(np.float32)


@given(problem=rows_of_reals(), dims=st.integers(0, 6))
@twin_test
def test_signed_pass_equals_its_dense_twin(problem, dims):
    rows, groups, weights = problem
    signed = coordinates(len(rows), dims)
    queue, fast = np.random.default_rng(0).permutation(len(rows)), np.empty(len(rows), np.int64)
    front = order_balance.sign_pass(
        queue, rows_of(rows, groups, weights, signed), slow_order.share_of(rows.sum(axis=0), groups), fast
    )
    dense = slow_order.centred(rows, groups) * np.sqrt(weights)[groups]
    dense = np.column_stack([dense, signed])
    assert fast.tolist() == slow_order.sign_pass(queue.tolist(), dense)
    assert 0 < front <= len(rows)


@given(
    problem=rows_of_reals(),
    pool=st.integers(1, 40),
    self_weight=st.sampled_from([0.5, 1.0]),
    opening=st.integers(0, 1),
    dims=st.integers(0, 6),
)
@twin_test
def test_pool_equals_its_dense_twin(problem, pool, self_weight, opening, dims):
    rows, groups, weights = problem
    dense, dense_placed = coordinates(len(rows), dims), np.random.default_rng(1).normal(size=dims)
    queue = np.random.default_rng(0).permutation(len(rows))
    arguments = rows_of(rows, groups, weights, dense)
    share = slow_order.share_of(rows.sum(axis=0), groups)
    fast = order_greedy.best_of_pool(
        queue,
        arguments,
        share,
        order_greedy.classes_of(arguments, rows.sum(axis=0)),
        np.zeros(rows.shape[1]),
        dense_placed,
        pool,
        self_weight,
        opening,
        len(rows),
    )
    slow = slow_order.best_of_pool(
        queue.tolist(),
        rows,
        groups,
        weights,
        share,
        pool=pool,
        self_weight=self_weight,
        fixed=opening,
        dense=dense.astype(np.float64),
        dense_placed=dense_placed,
    )
    assert fast.tolist() == slow


@pytest.mark.parametrize("strategy", ["f1", "f2", "f3"])
@given(problem=rows_of_reals(), lambda_=st.sampled_from([0.0, 0.3, 1.0, 50.0]))
@twin_test
def test_exact_greedy_equals_the_objective_spelled_out(strategy, problem, lambda_):
    rows, groups, weights = problem
    # Of equal items the first of the strategy's shuffle goes.
    left = np.random.default_rng(0).permutation(len(rows)).tolist()
    slow = {
        "f1": lambda: slow_order.f1(rows, groups, left),
        "f2": lambda: slow_order.f2(rows, groups, left, lambda_),
        "f3": lambda: slow_order.f3(rows, groups, weights, left),
    }[strategy]()
    options = {"f2_lambda": lambda_} if strategy == "f2" else {}
    assert order(csr_matrix(rows), groups, strategy=strategy, weights=weights, **options).tolist() == slow


def test_the_number_of_threads_does_not_matter(monkeypatch):
    random = np.random.default_rng(0)
    counts = csr_matrix(random.integers(0, 9, (3000, 8)))
    monkeypatch.setattr(balanced, "POOL", 50)
    monkeypatch.setattr(balanced, "MIN_POOL", 50)
    expected = order(counts, [0] * 5 + [1] * 3)
    monkeypatch.setattr(balanced, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))
    assert order(counts, [0] * 5 + [1] * 3).tobytes() == expected.tobytes()


labelled = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=40)
far_apart = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**40)), min_size=1, max_size=25)


def items(pairs: list[tuple[int, int]]) -> tuple[csr_matrix, list[int], list[int]]:
    """(one-hot counts, labels, lengths); stored zeros keep the label of items without tokens."""
    labels, lengths = map(list, zip(*pairs, strict=True))
    indptr = np.arange(len(pairs) + 1)
    return csr_matrix((lengths, labels, indptr), shape=(len(pairs), 6)), labels, lengths


BY_LABEL = {"round_robin": slow_order.round_robin, "stratified": slow_order.largest_deficit_first}


@pytest.mark.parametrize("strategy", BY_LABEL)
@given(pairs=labelled)
@twin_test
def test_orders_by_label_equal_their_twins(strategy, pairs):
    counts, labels, _ = items(pairs)
    expected = BY_LABEL[strategy](slow_order.label_queues(labels))
    assert order(counts, [0] * 6, strategy=strategy, within_cluster="original").tolist() == expected


@given(pairs=labelled | far_apart)
@twin_test
def test_token_share_greedy_equals_its_twin(pairs):
    """Also of trillions of tokens. Of equal items the first of a shuffle goes."""
    counts, labels, lengths = items(pairs)
    shuffle = np.random.default_rng(0).permutation(len(pairs))
    slow = slow_order.token_share_greedy(
        np.array(labels)[shuffle].tolist(), np.array(lengths)[shuffle].tolist()
    )
    assert order(counts, [0] * 6, strategy="token_share_greedy").tolist() == shuffle[slow].tolist()


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
