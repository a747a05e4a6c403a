"""The greedy kernels and what is built on them (`f1`, `f2`, `f3`, `balanced`) against slow, obvious twins."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.core.kernels import order_balance, order_greedy
from dagster_divorder.core.order import balanced
from dagster_divorder.core.order.problem import NORM_BINS, NORM_WEIGHT
from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from tests.conftest import examples
from tests.orders import order
from tests.twins import order as slow_order

twin_test = settings(deadline=None, max_examples=examples(15))


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


@given(problem=rows_of_reals(), seed=st.integers(0, 5), dims=st.integers(0, 3))
@twin_test
def test_balanced_is_norms_passes_and_pools_from_both_ends(problem, seed, dims):
    rows, groups, weights = problem
    signed = coordinates(len(rows), dims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balanced, "PASSES", 3)
        patch.setattr(balanced, "POOL", 5)
        patch.setattr(balanced, "MIN_POOL", 5)
        patch.setattr(balanced, "MIN_DENSE_POOL", 5)
        patch.setattr(balanced, "LAST_POOL", 1)
        patch.setattr(balanced, "SHRINK", 2)
        fast = order(csr_matrix(rows), groups, weights=weights, seed=seed, coordinates=signed)

    sizes = rows[:, groups == 0].sum(axis=1)
    pace = (sizes - sizes.mean()) * np.sqrt(balanced.LENGTH_WEIGHT * weights[0])
    effect = len(sizes) * (sizes**2).sum() / sizes.sum() ** 2 if sizes.sum() else 1.0
    self_weight = 1 - (1 - balanced.SELF_WEIGHT) / effect
    signed = signed - np.outer(sizes, signed.sum(axis=0, dtype=np.float64) / (sizes.sum() or 1.0))
    signed = signed.astype(np.float32).astype(np.float64)
    rows, groups, weights = with_norms(rows, groups, weights, signed, sizes.mean())
    signed = np.column_stack([signed, pace.astype(np.float32)])
    dense = np.column_stack([slow_order.centred(rows, groups) * np.sqrt(weights)[groups], signed])
    run = partial(
        slow_order.best_of_pool,
        rows=rows,
        groups=groups,
        weights=weights,
        share=slow_order.share_of(rows.sum(axis=0), groups),
        dense=signed,
    )
    queue = np.random.default_rng(seed).permutation(len(rows)).tolist()
    ends: list[list[int]] = [[], []]
    for pool, opening in ((5, 1), (2, 0)):
        plus, minus = slow_order.signed(queue, dense)
        queue = []
        for end, half in zip(ends, (plus, minus[::-1]), strict=True):
            for _ in range(2):
                half = slow_order.sign_pass(half, dense)
            n_laid = max(len(half) - pool, min(opening, len(half)))
            so_far = {"placed": rows[end].sum(axis=0), "dense_placed": signed[end].sum(axis=0)}
            end += run(half, pool=pool, self_weight=self_weight, fixed=opening, **so_far)[:n_laid]
            queue += [item for item in half if item not in end]
    front, back = ends
    between = run(
        queue,
        pool=len(queue),
        self_weight=0.5 + self_weight / 2,
        placed=rows[front].sum(axis=0),
        dense_placed=signed[front].sum(axis=0),
    )
    assert fast.tolist() == front + between + back[::-1]


def with_norms(
    rows: np.ndarray, groups: np.ndarray, weights: np.ndarray, signed: np.ndarray, mean: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows with the group of their norms' bins, in items."""
    whole = np.column_stack([slow_order.centred(rows, groups) * np.sqrt(weights)[groups], signed])
    norms = np.sqrt((whole**2).sum(axis=1))
    norms = np.round(norms / (norms.max() or 1.0), 9)
    bins = bin_codes(norms, quantile_edges(norms, NORM_BINS))
    if not bins.any():
        return rows, groups, weights
    unit = 2.0 ** max(0, np.floor(np.log2(mean))) if mean else 1.0
    held = unit * (bins[:, np.newaxis] == np.arange(bins.max() + 1))
    return (
        np.column_stack([rows, held]),
        np.append(groups, np.full(held.shape[1], len(weights), np.int32)),
        np.append(weights, NORM_WEIGHT * weights.max() * ((mean / unit) ** 2 or 1.0)),
    )


def test_the_number_of_threads_does_not_matter(monkeypatch):
    random = np.random.default_rng(0)
    counts = csr_matrix(random.integers(0, 9, (3000, 8)))
    monkeypatch.setattr(balanced, "POOL", 50)
    monkeypatch.setattr(balanced, "MIN_POOL", 50)
    expected = order(counts, [0] * 5 + [1] * 3)
    monkeypatch.setattr(balanced, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))
    assert order(counts, [0] * 5 + [1] * 3).tobytes() == expected.tobytes()
