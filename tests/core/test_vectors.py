"""Vectors: pooling, tokens by PPMI and SVD, principal components, unit rows: against slow twins, and their laws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from dagster_divorder.core.vectors import ppmi, unit
from dagster_divorder.core.vectors.pca import Pca, fit, project
from dagster_divorder.core.vectors.pool import document_frequency, pool, token_weights
from dagster_divorder.core.vectors.ppmi import token_vectors
from dagster_divorder.core.vectors.unit import unit_rows
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
    weights[3] = 0.0
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


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_neither_threads_nor_other_documents_change_the_bytes_of_a_vector(threads):
    rng, of_model = np.random.default_rng(1), model(vocabulary=3000, dim=67)
    lengths = rng.integers(0, 300, 200)
    lengths[[0, 50, 199]] = 0
    lengths[7] = 20_000
    ids = rng.integers(0, 3000, lengths.sum()).astype(np.uint16)
    together = pool(ids, lengths, *of_model)
    assert together.tobytes() == pool(ids, lengths, *of_model, threads=threads).tobytes()
    for d in (0, 1, 7, 8, 199):
        own = ids[lengths[:d].sum() : lengths[: d + 1].sum()]
        assert pool(own, lengths[d : d + 1], *of_model).tobytes() == together[d].tobytes()


def test_a_token_outside_the_table_is_refused_not_clamped():
    with pytest.raises(InputError, match="token id 11 is outside a vocabulary of 11"):
        pool(*flat([[11]]), *model())
    with pytest.raises(InputError, match="token id 11 is outside"):
        document_frequency(*flat([[2, 11]]), VOCABULARY)
    with pytest.raises(InputError, match="token id -1 is outside"):
        pool(*flat([[-1]], np.int64), *model())


def test_weights_must_fit_and_rows_that_no_token_id_uses_need_none():
    ids, lengths = flat([[1, 2], [3]])
    table, weights = model()
    with pytest.raises(InputError, match="12 weights for a table of 11 rows"):
        pool(ids, lengths, table, np.ones(12, np.float32))
    assert_array_equal(pool(ids, lengths, table, weights[:4]), pool(ids, lengths, table, weights))
    with pytest.raises(InputError, match="token id 3 is outside a vocabulary of 3"):
        pool(ids, lengths, table, weights[:3])


def test_idf_falls_with_document_frequency_and_stays_positive():
    weights = token_weights(np.array([0, 1, 5, 1000]), 1000, "idf")
    assert weights.dtype == np.float32
    assert (np.diff(weights) < 0).all()
    assert 0 < weights[-1] < 1e-3
    assert_allclose(weights[1], np.log(1001 / 1.5), rtol=1e-6)


corpora = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=7), min_size=1, max_size=7)


def topical(documents=60, seed=0):
    """Two topics of 20 tokens each and 10 tokens that both use."""
    rng = np.random.default_rng(seed)
    return [
        np.concatenate([rng.integers(20 * (d % 2), 20 * (d % 2) + 20, 30), rng.integers(40, 50, 10)])
        for d in range(documents)
    ]


@settings(max_examples=examples(25), deadline=None)
@given(corpora)
def test_ppmi_equals_the_dense_formula(documents):
    frequency = np.array(slow_pool.count_documents(*flat(documents), VOCABULARY))
    contexts = [token for token in np.argsort(-frequency, kind="stable").tolist() if frequency[token]]
    found = ppmi.ppmi(ppmi.in_pieces(*flat(documents), VOCABULARY))
    assert found.shape == (VOCABULARY, len(contexts))
    if contexts:
        pairs = slow_pool.count_pairs([set(document) for document in documents], contexts, VOCABULARY)
        expected = pairs.sum(axis=1, keepdims=True) * pairs.sum(axis=0) / pairs.sum()
        ratio = np.divide(pairs, expected, out=np.zeros_like(pairs), where=expected > 0)
        assert_allclose(found, np.log(np.maximum(ratio, 1)), atol=1e-6)


def test_vectors_are_the_left_singular_vectors(monkeypatch):
    monkeypatch.setattr(ppmi, "POWER_STEPS", 20)
    documents = topical()
    found = token_vectors(*flat(documents), 50, 8)
    left, strength, _ = np.linalg.svd(ppmi.ppmi(ppmi.in_pieces(*flat(documents), 50)).astype(np.float64))
    cosines = np.abs((found.vectors / np.linalg.norm(found.vectors, axis=0)).T @ left[:, :8])
    assert found.rank == 8
    assert_allclose(cosines, np.eye(8), atol=1e-3)
    assert_allclose(found.explained, (strength[:8] ** 2).sum() / (strength**2).sum(), rtol=1e-5)
    assert_allclose(np.sqrt((found.vectors**2).mean(axis=0)), ppmi.TABLE_SCALE, rtol=1e-4)


def test_a_document_is_cut_into_even_pieces(monkeypatch):
    monkeypatch.setattr(ppmi, "PIECE_TOKENS", 4)
    pieces = ppmi.in_pieces(np.arange(9, dtype=np.uint16), np.array([9, 0]), 9)
    assert pieces.toarray().argmax(axis=0).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_one_long_document_has_structure():
    """Its first half is about one topic, its second about another."""
    ids = np.concatenate([*topical(400)[::2], *topical(400)[1::2]])
    found = token_vectors(ids, np.array([len(ids)]), 50, 4)
    assert found.pieces == 16
    assert found.rank >= 2


@pytest.mark.parametrize(
    "documents", [[[1, 2, 3]], [[1, 2, 3]] * 10, [[]], [[5]]], ids=["one", "alike", "empty", "one token"]
)
def test_where_nothing_can_be_learnt_vectors_are_random_from_the_seed(documents):
    found, again, other = (token_vectors(*flat(documents), VOCABULARY, 4, seed=seed) for seed in (1, 1, 2))
    assert (found.rank, found.explained) == (0, 0.0)
    assert np.isfinite(found.vectors).all()
    assert np.linalg.matrix_rank(found.vectors) == 4
    assert_array_equal(found.vectors, again.vectors)
    assert (found.vectors != other.vectors).all()


def test_columns_beyond_the_rank_and_tokens_never_seen_are_zero():
    found = token_vectors(*flat([[0, 1], [2, 3], [0, 1], [2, 4]]), VOCABULARY, 30)
    assert 0 < found.rank < 5
    assert not found.vectors[:, found.rank :].any()
    assert not found.vectors[5:].any()
    assert found.vectors[:5].any(axis=1).all()


def spread(n=400, dims=12, seed=0):
    """Vectors whose variance falls from axis to axis of a random basis, around a mean that is not zero."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(dims, dims)))
    points = rng.normal(size=(n, dims)) * 0.5 ** np.arange(dims)
    return (points @ basis.T + rng.normal(size=dims)).astype(np.float32), basis


shapes = st.tuples(st.integers(0, 9), st.integers(1, 7), st.integers(0, 1000))


@settings(max_examples=examples(15), deadline=None)
@given(shapes, st.integers(1, 7))
def test_a_projection_equals_its_twin(shape, components):
    n, dims, seed = shape
    rng = np.random.default_rng(seed)
    mean, axes = rng.normal(size=dims), rng.normal(size=(dims, components))
    vectors = rng.normal(size=(n, dims)).astype(np.float32)
    mean[:] = mean.astype(np.float32)
    vectors[::4] = mean
    found = project(vectors, Pca(mean=mean, axes=axes))
    assert_allclose(found, slow_pool.project_rows(vectors, mean, axes), atol=1e-6)
    assert not found[::4].any()


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 40), st.integers(0, 1000), st.integers(1, 3))
def test_neither_the_batch_nor_threads_change_a_byte(rows, seed, threads):
    vectors, _ = spread(100, 70, seed)
    pca = fit(vectors, 9)
    whole = project(vectors, pca)
    order = np.random.default_rng(seed).permutation(len(vectors))
    with threadpool_limits(limits=2):
        parts = [
            project(vectors[order[at : at + rows]], pca, threads=threads) for at in range(0, len(order), rows)
        ]
    assert np.concatenate(parts).tobytes() == whole[order].tobytes()


def test_the_axes_are_the_directions_of_most_variance():
    vectors, basis = spread(20_000)
    found = fit(vectors, 3)
    assert_allclose(np.abs((found.axes * basis[:, :3]).sum(axis=0)), 1, atol=0.01)
    assert_allclose(found.axes.T @ found.axes, np.eye(3), atol=1e-9)
    assert_allclose(found.mean, vectors.mean(axis=0, dtype=np.float64), atol=1e-6)
    projected = project(vectors, found)
    assert_allclose(np.linalg.norm(projected, axis=1), 1, atol=1e-6)


def test_the_same_sample_gives_the_same_bytes_whatever_the_threads():
    vectors, _ = spread(3000, 130)
    with threadpool_limits(limits=1):
        one = fit(vectors, 20)
    with threadpool_limits(limits=2):
        two = fit(vectors, 20)
    assert one.axes.tobytes() == two.axes.tobytes()
    assert (np.abs(one.axes).max(axis=0) == one.axes.max(axis=0)).all()


@pytest.mark.parametrize("n", [1, 5])
def test_vectors_all_alike_have_no_direction(n):
    vectors = np.tile(np.float32([0.6, 0.8]), (n, 1))
    found = fit(vectors, 1)
    assert not project(vectors, found).any()
    assert np.isfinite(project(np.float32([[1, 0]]), found)).all()


def test_vectors_that_are_not_finite_stay_visible_and_are_not_fitted():
    vectors, _ = spread(20, 4)
    found = fit(vectors, 2)
    assert np.isnan(project(np.float32([[1, np.nan, 0, 0]]), found)).all()
    assert np.isnan(project(np.float32([[1, np.inf, 0, 0]]), found)).all()
    with pytest.raises(InputError, match="NaN"):
        fit(vectors * np.nan, 2)


@pytest.mark.parametrize(("n", "dims", "most"), [(5, 12, 5), (40, 12, 12), (1, 4, 1)])
def test_there_are_no_more_components_than_vectors_or_dims(n, dims, most):
    vectors, _ = spread(n, dims)
    found = fit(vectors, most + 1)
    assert found.axes.shape == (dims, most)
    assert found.axes.tobytes() == fit(vectors, most).axes.tobytes()


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(0, 9),
    st.integers(1, 300),
    st.integers(0, 1000),
    st.sampled_from(
        [(np.float64, 1e-300), (np.float64, 1e300), (np.float32, 1e-30), (np.float32, 1e30), (np.float16, 1)]
    ),
)
def test_unit_rows_have_length_one_and_their_direction(n, dims, seed, kind):
    dtype, scale = kind
    vectors = (np.random.default_rng(seed).normal(size=(n, dims)) * scale).astype(dtype)
    vectors[::3] = 0.0
    units = unit_rows(vectors)
    assert units.dtype == np.float32
    for row, found in zip(vectors.astype(float), units, strict=True):
        length = math.hypot(*row)
        assert found.tolist() == pytest.approx([x / length for x in row] if length else row, abs=1e-7)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 40), st.integers(1, 300), st.integers(0, 1000))
def test_the_batch_changes_no_byte(rows, dims, seed):
    vectors = np.random.default_rng(seed).normal(size=(60, dims)).astype(np.float32)
    whole = unit_rows(vectors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "BLOCK", 7 * dims)
        parts = [unit_rows(vectors[at : at + rows]) for at in range(0, 60, rows)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
