"""Pooling against its token-by-token twin, and its laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dagster_divorder.core.vectors.pool import document_frequency, pool, token_weights
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import pool as slow_pool

VOCABULARY, DIM = 11, 5
documents = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=9), max_size=8)
cases = settings(max_examples=examples(25), deadline=None)


def flat(documents, dtype=np.uint16):
    ids = np.array([token for document in documents for token in document], dtype)
    return ids, np.array([len(document) for document in documents], np.int64)


def model(seed=0, vocabulary=VOCABULARY, dim=DIM):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(vocabulary, dim)).astype(np.float32), rng.random(vocabulary).astype(np.float32)


@cases
@given(documents)
def test_vectors_equal_the_token_by_token_sum(documents):
    ids, lengths = flat(documents)
    table, weights = model()
    pooled = pool(ids, lengths, table, weights)
    assert (pooled.dtype, pooled.shape) == (np.float32, (len(documents), DIM))
    assert_allclose(pooled, slow_pool.pool_rows(ids, lengths, table, weights), atol=1e-6)


@cases
@given(documents)
def test_document_frequency_equals_the_count_of_sets(documents):
    ids, lengths = flat(documents)
    found = document_frequency(ids, lengths, VOCABULARY)
    assert found.dtype == np.int64
    assert found.tolist() == slow_pool.count_documents(ids, lengths, VOCABULARY)


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 300, 200)
    lengths[[0, 50, 199]] = 0
    lengths[7] = 20_000
    return rng.integers(0, 3000, lengths.sum()).astype(np.uint16), lengths


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_change_the_bytes(corpus, threads):
    table, weights = model(vocabulary=3000, dim=67)
    one = pool(*corpus, table, weights)
    assert one.tobytes() == pool(*corpus, table, weights, threads=threads).tobytes()


def test_a_vector_depends_on_its_own_document_alone(corpus):
    ids, lengths = corpus
    table, weights = model(vocabulary=3000, dim=67)
    together = pool(ids, lengths, table, weights)
    starts = np.cumsum(lengths) - lengths
    for d in (0, 1, 7, 8, 199):
        own = ids[starts[d] : starts[d] + lengths[d]]
        alone = pool(own, lengths[d : d + 1], table, weights)
        assert alone.tobytes() == together[d].tobytes()


def test_vectors_have_length_one_except_of_documents_without_weight():
    table, weights = model()
    weights[3] = 0.0
    pooled = pool(*flat([[0, 1, 1], [], [3, 3]]), table, weights)
    assert_allclose(np.linalg.norm(pooled, axis=1), [1, 0, 0], atol=1e-6)


def test_a_token_outside_the_table_is_refused_not_clamped():
    with pytest.raises(InputError, match="token id 11 is outside a vocabulary of 11"):
        pool(*flat([[11]]), *model())
    with pytest.raises(InputError, match="token id 11 is outside"):
        document_frequency(*flat([[2, 11]]), VOCABULARY)
    with pytest.raises(InputError, match="token id -1 is outside"):
        pool(*flat([[-1]], np.int64), *model())


def test_weights_must_fit():
    ids, lengths = flat([[1, 2], [3]])
    with pytest.raises(InputError, match="12 weights for a table of 11 rows"):
        pool(ids, lengths, model()[0], np.ones(12, np.float32))


def test_rows_that_no_token_id_uses_need_no_weight():
    table, weights = model()
    ids, lengths = flat([[1, 2], [3]])
    assert_array_equal(pool(ids, lengths, table, weights[:4]), pool(ids, lengths, table, weights))
    with pytest.raises(InputError, match="token id 3 is outside a vocabulary of 3"):
        pool(ids, lengths, table, weights[:3])


def test_idf_falls_with_document_frequency_and_stays_positive():
    weights = token_weights(np.array([0, 1, 5, 1000]), 1000, "idf")
    assert weights.dtype == np.float32
    assert (np.diff(weights) < 0).all()
    assert 0 < weights[-1] < 1e-3
    assert_allclose(weights[1], np.log(1001 / 1.5), rtol=1e-6)
