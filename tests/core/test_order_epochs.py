"""Epoch plans: every epoch another order, items nearly an epoch apart, and no bump where one epoch follows another."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.core.order.epochs import BLOCK, BLOCKS, plan_epochs
from tests.conftest import examples
from tests.orders import epoch_orders, items_of, order

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def sequences(items: int, values: int = 12) -> tuple[csr_matrix, np.ndarray]:
    """Items of 100 tokens over two trait groups."""
    random = np.random.default_rng(items)
    parts = [random.multinomial(100, random.dirichlet(np.full(values, 0.3)), items) for _ in range(2)]
    return csr_matrix(np.concatenate(parts, axis=1)), np.repeat([0, 1], values)


def places(orders: np.ndarray) -> np.ndarray:
    """Place of each item in each epoch, (E, M)."""
    return np.argsort(orders, axis=1)


@every_strategy
@given(items=st.integers(1, 200), seed=st.integers(0, 2))
@settings(max_examples=examples(10), deadline=None)
def test_every_epoch_is_a_permutation_and_the_first_is_the_strategys(strategy, items, seed):
    counts, groups = sequences(items, 3)
    options = {"strategy": strategy, "seed": seed}
    orders = epoch_orders(counts, groups, 3, **options)
    assert orders.shape == (3, items)
    assert orders.dtype == np.int64
    assert (np.sort(orders, axis=1) == np.arange(items)).all()
    assert np.array_equal(orders[0], order(counts, groups, **options))
    assert np.array_equal(orders[:2], epoch_orders(counts, groups, 2, **options))


def test_a_first_epoch_that_is_given_has_its_blocks_ordered_anew():
    counts, groups = sequences(200, 3)
    first = np.random.default_rng(0).permutation(200)
    plan = plan_epochs(items_of(counts, groups), first=first)
    assert plan.order(0) is first
    blocks = [
        np.sort(made.reshape(-1)[begin:end])
        for made in (first, plan.order(1))
        for begin, end in itertools.pairwise(np.arange(7) * 200 // 6)
    ]
    half = len(blocks) // 2
    assert half == 200 // BLOCK
    assert all((one == other).all() for one, other in zip(blocks[:half], blocks[half:], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("items", [BLOCK, 3000])
def test_an_item_comes_again_after_nearly_an_epoch(strategy, items):
    counts, groups = sequences(items)
    orders = epoch_orders(counts, groups, 3, strategy=strategy, batch=16)
    again = items + np.diff(places(orders), axis=0)
    blocks = min(BLOCKS, items // BLOCK)
    assert again.min() > items - items / blocks - 16
    # Another order each time, not the same one again.
    assert (np.diff(places(orders), axis=0) == 0).mean() < 0.25
