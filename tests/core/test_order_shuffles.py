"""The shuffles that large corpora get: what each of them keeps in place, and what that does to a sorted corpus."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from tests.conftest import examples
from tests.orders import order
from tests.twins.metrics import window_variation

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
    options = {"seed": seed, "sequence_length": 20}
    other = order(*corpus, strategy=strategy or "balanced", **options).tolist()
    named = {"block_strategy": strategy} if strategy else {}
    shuffled = order(*corpus, strategy="block_shuffle", batch=batch, **named, **options).tolist()
    whole = items // batch * batch
    blocks = {tuple(other[i : i + batch]) for i in range(0, whole, batch)}
    assert {tuple(shuffled[i : i + batch]) for i in range(0, whole, batch)} == blocks
    assert shuffled[whole:] == other[whole:]


def test_block_shuffle_moves_the_batches():
    corpus = sorted_corpus(4096)
    runs = [order(*corpus, strategy=name, batch=16).reshape(-1, 16) for name in ("balanced", "block_shuffle")]
    assert (runs[0] == runs[1]).all(axis=1).mean() < 0.1


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


@pytest.mark.parametrize("shards", [16, 64])
def test_each_row_of_the_grid_takes_evenly_from_each_column(shards):
    side = int(shards**0.5)
    made = order(*sorted_corpus(4096, 1), strategy="grid_shuffle", shards=shards).reshape(side, -1)
    columns = made * shards // 4096 % side
    for row in columns:
        assert np.bincount(row, minlength=side).tolist() == [4096 // shards] * side


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


def test_a_sorted_corpus_stays_sorted_within_shards_and_buffers():
    """What TokenShard warns of: of 8 sources in blocks, a window of 256 items shows one or two."""
    corpus = sorted_corpus(32_768)
    codes = corpus[0].indices
    options = {"within_shard": {"shards": 64}, "grid_shuffle": {"shards": 64}, "buffer": {"buffer": 1024}}
    worst = {
        name: window_variation(
            np.ones(32_768, int), codes[order(*corpus, strategy=name, **options.get(name, {}))], 8, 256
        ).mean()
        for name in ("random", "within_shard", "buffer", "grid_shuffle", "balanced")
    }
    assert worst["within_shard"] > 0.85
    assert worst["buffer"] > 0.7
    assert worst["grid_shuffle"] < 1.1 * worst["random"] < 0.1
    assert worst["balanced"] < 0.1 * worst["random"]
