"""What an order is for: prefixes that carry the whole's mix. And that magnitudes do not matter."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from dagster_divorder.core.order import STRATEGIES, balanced
from tests.orders import order
from tests.twins import order as slow_order


def packed_sequences(n_items: int) -> tuple[csr_matrix, np.ndarray]:
    """2048 tokens of three documents each, 100 clusters of uneven size and 20 length bins."""
    random = np.random.default_rng(0)
    cuts = np.sort(random.integers(1, 2048, (n_items, 2)), axis=1)
    tokens = np.diff(cuts, axis=1, prepend=0, append=2048)
    clusters = random.choice(100, (n_items, 3), p=random.dirichlet(np.ones(100)))
    columns = np.concatenate([clusters, 100 + random.integers(0, 20, (n_items, 3))], axis=1)
    rows = np.arange(n_items).repeat(6)
    counts = csr_matrix((np.tile(tokens, 2).ravel(), (rows, columns.ravel())), shape=(n_items, 120))
    return counts, np.repeat([0, 1], [100, 20])


@pytest.mark.parametrize("pool", [balanced.POOL, 1024], ids=["one pool holds all", "two pools and a gap"])
def test_without_norms_balanced_strays_no_further_than_the_exact_greedy(pool, monkeypatch):
    monkeypatch.setattr(balanced, "POOL", pool)
    monkeypatch.setitem(STRATEGIES, "balanced", replace(balanced.STRATEGY, balances_norms=False))
    counts, groups = packed_sequences(8_000)
    rows = slow_order.centred(counts.toarray(), groups)
    exact, fast = (
        np.cumsum(rows[order(counts, groups, strategy=strategy)], axis=0) for strategy in ("f3", "balanced")
    )
    for group in (0, 1):
        one, other = (np.linalg.norm(path[:, groups == group], axis=1) for path in (exact, fast))
        assert other.mean() <= 1.1 * one.mean()
        assert other.max() <= 1.15 * one.max()
    assert np.abs(fast).max() <= 1.25 * np.abs(exact).max()


def test_items_far_from_the_mix_do_not_gather_at_an_end():
    """A tenth of the sequences are of one cluster each; exact f3 leaves them for the end."""
    counts, groups = packed_sequences(4_000)
    rows = counts.toarray()
    pure = np.arange(0, 4000, 10)
    for item, cluster in zip(pure, np.random.default_rng(1).integers(0, 100, len(pure)), strict=True):
        rows[item, :100] = 0
        rows[item, cluster] = 2048
    drifting, even = (
        np.isin(order(csr_matrix(rows), groups, strategy=strategy), pure).reshape(10, 400).sum(axis=1)
        for strategy in ("f3", "balanced")
    )
    assert drifting[0] < 10 and drifting[-1] > 80
    assert ((even - 40) ** 2 / 40).sum() / 9 < 1.5


def test_what_coordinates_tell_is_balanced_within_rows_that_are_equal():
    """A hidden trait that drifts with the input: rows say nothing of it, one coordinate does."""
    random = np.random.default_rng(0)
    counts = csr_matrix((np.full(4000, 10), random.integers(0, 5, 4000), np.arange(4001)), shape=(4000, 5))
    hidden = random.normal(size=(4000, 3)) + np.linspace(-2, 2, 4000)[:, np.newaxis]
    batches = {
        name: np.linalg.norm(hidden[made].reshape(40, 100, 3).mean(axis=1), axis=1).mean()
        for name, made in (
            ("shuffled", order(counts, [0] * 5, strategy="random")),
            ("balanced", order(counts, [0] * 5)),
            ("balanced with coordinates", order(counts, [0] * 5, coordinates=10 * hidden)),
            ("f3 with coordinates", order(counts, [0] * 5, strategy="f3", coordinates=10 * hidden)),
        )
    }
    assert batches["balanced"] < 1.3 * batches["shuffled"]
    assert batches["balanced with coordinates"] < 0.15 * batches["shuffled"]
    assert batches["f3 with coordinates"] < 0.15 * batches["shuffled"]
