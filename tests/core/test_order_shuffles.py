"""The shuffles that large corpora get: what each of them keeps in place, and what that does to a sorted corpus."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from tests.conftest import examples
from tests.orders import order

laws = settings(max_examples=examples(25), deadline=None)


def sorted_corpus(items: int, values: int = 8) -> tuple[csr_matrix, list[int]]:
    """Items of one token, sorted by trait value, as a corpus read source by source is."""
    codes = np.arange(items) * values // items
    return csr_matrix((np.ones(items, int), codes, np.arange(items + 1)), shape=(items, values)), [0] * values


@pytest.mark.parametrize("strategy", [None, "f1", "f3"])
@given(items=st.integers(1, 300), batch=st.integers(1, 40), seed=st.integers(0, 3))
@laws
def test_block_shuffle_keeps_the_batches_of_the_other_strategy(strategy, items, batch, seed):
    corpus = sorted_corpus(items, min(4, items))
    options = {"seed": seed}
    other = order(*corpus, strategy=strategy or "balanced", **options).tolist()
    named = {"block_strategy": strategy} if strategy else {}
    shuffled = order(*corpus, strategy="block_shuffle", batch=batch, **named, **options).tolist()
    whole = items // batch * batch
    blocks = {tuple(other[i : i + batch]) for i in range(0, whole, batch)}
    assert {tuple(shuffled[i : i + batch]) for i in range(0, whole, batch)} == blocks
    assert shuffled[whole:] == other[whole:]


@given(items=st.integers(1, 300), shards=st.integers(1, 40), seed=st.integers(0, 3))
@laws
def test_within_shard_lets_no_item_leave_its_shard(items, shards, seed):
    made = order(*sorted_corpus(items, 1), strategy="within_shard", shards=shards, seed=seed)
    home = np.arange(items) * shards // items
    assert np.array_equal(home[made], home)


@given(items=st.integers(1, 300), buffer=st.integers(1, 400), seed=st.integers(0, 3))
@laws
def test_the_buffer_moves_no_item_far_forward(items, buffer, seed):
    made = order(*sorted_corpus(items, 1), strategy="buffer", buffer=buffer, seed=seed)
    assert sorted(made) == list(range(items)) and (made - np.arange(items) < buffer).all()


@pytest.mark.parametrize("shards", [1, 2, 3, 16, 61, 64, 1000])
def test_the_grid_shuffle_brings_items_everywhere(shards):
    """The mean distance between place and item is that of a shuffle, a third of all, whatever the grid's shape."""
    moved = [
        np.abs(
            order(*sorted_corpus(600, 1), strategy="grid_shuffle", shards=shards, seed=seed) - np.arange(600)
        )
        for seed in range(10)
    ]
    assert np.mean(moved) == pytest.approx(200, rel=0.06)
