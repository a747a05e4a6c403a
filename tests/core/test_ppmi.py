"""PPMI-SVD token vectors against the dense textbook computation, and small corpora."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dagster_divorder.core.vectors import ppmi
from dagster_divorder.core.vectors.ppmi import token_vectors
from tests.conftest import examples
from tests.twins import pool as slow_pool

VOCABULARY = 9
corpora = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=7), min_size=1, max_size=7)


def flat(documents):
    ids = np.array([token for document in documents for token in document], np.uint16)
    return ids, np.array([len(document) for document in documents], np.int64)


def topical(documents=60, seed=0):
    """Two topics of 20 tokens each and 10 tokens that both use."""
    rng = np.random.default_rng(seed)
    return [
        np.concatenate([rng.integers(20 * (d % 2), 20 * (d % 2) + 20, 30), rng.integers(40, 50, 10)])
        for d in range(documents)
    ]


def dense_ppmi(documents, contexts):
    pairs = slow_pool.count_pairs([set(document) for document in documents], contexts, VOCABULARY)
    expected = pairs.sum(axis=1, keepdims=True) * pairs.sum(axis=0) / pairs.sum()
    ratio = np.divide(pairs, expected, out=np.zeros_like(pairs), where=expected > 0)
    return np.log(np.maximum(ratio, 1))


@settings(max_examples=examples(25), deadline=None)
@given(corpora)
def test_ppmi_equals_the_dense_formula(documents):
    frequency = np.array(slow_pool.count_documents(*flat(documents), VOCABULARY))
    contexts = [token for token in np.argsort(-frequency, kind="stable").tolist() if frequency[token]]
    found = ppmi.ppmi(ppmi.in_pieces(*flat(documents), VOCABULARY))
    assert found.shape == (VOCABULARY, len(contexts))
    if contexts:
        assert_allclose(found, dense_ppmi(documents, contexts), atol=1e-6)


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
