"""Difficulty: the kernel against its twin, no document easier for having been counted, and what it has to rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.text import difficulty
from dagster_divorder.core.text.difficulty import Counts, bits_a_token
from dagster_divorder.errors import InputError
from tests.twins import difficulty as twin

VOCABULARY = 9

documents = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=30), min_size=1, max_size=8)


@pytest.fixture(scope="module", autouse=True)
def few_buckets() -> Iterator[None]:
    """So few that pairs share them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(difficulty, "SHIFT", np.uint64(64 - 6))
        yield


def flat(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array([token for text in texts for token in text], np.uint16)
    return ids, np.array([len(text) for text in texts], np.int64)


def counts_of(texts: list[list[int]], counted: np.ndarray | None = None) -> Counts:
    ids, lengths = flat(texts)
    counts = Counts.none(VOCABULARY)
    counts.add(ids, lengths, lengths if counted is None else counted)
    return counts


@settings(deadline=None)
@given(documents, st.data())
def test_the_kernel_is_its_twin_and_leaves_the_counts_as_they_were(
    texts: list[list[int]], data: st.DataObject
) -> None:
    ids, lengths = flat(texts)
    counted = np.array([data.draw(st.integers(0, n)) for n in lengths], np.int64)
    counts = counts_of(texts, counted)
    tokens, pairs = counts.tokens.copy(), counts.pairs.copy()
    bits = bits_a_token(ids, lengths, counted, counts)
    expected = twin.mean_bits(texts, counted.tolist(), VOCABULARY, difficulty.PRIOR, int(difficulty.SHIFT))
    assert np.allclose(bits, expected, rtol=1e-9, equal_nan=True)
    assert np.array_equal(np.isnan(bits), lengths == 0)
    assert np.array_equal(counts.tokens, tokens)
    assert np.array_equal(counts.pairs, pairs)


@settings(deadline=None)
@given(documents, st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30))
def test_a_document_is_as_hard_if_it_was_counted_as_if_it_was_not(
    texts: list[list[int]], more: list[int]
) -> None:
    ids, lengths = flat([more])
    apart = bits_a_token(ids, lengths, np.zeros(1, np.int64), counts_of(texts))
    assert bits_a_token(ids, lengths, lengths, counts_of([*texts, more])) == apart


@settings(deadline=None)
@given(documents, st.integers(0, 8))
def test_the_same_bytes_for_any_division_into_calls(texts: list[list[int]], cut: int) -> None:
    counts = counts_of(texts)

    def measure(some: list[list[int]]) -> list[bytes]:
        ids, lengths = flat(some)
        return [value.tobytes() for value in bits_a_token(ids, lengths, lengths, counts)]

    assert measure(texts) == measure(texts[:cut]) + measure(texts[cut:])


def test_what_follows_a_token_decides_and_not_only_how_frequent_it_is() -> None:
    """Texts of the same tokens equally often: in a known order, and shuffled."""
    rng = np.random.default_rng(0)
    known = np.tile(np.arange(VOCABULARY), 40)
    corpus = [known.tolist() for _ in range(20)]
    ids, lengths = flat([known.tolist(), rng.permutation(known).tolist()])
    easy, hard = bits_a_token(ids, lengths, np.zeros(2, np.int64), counts_of(corpus))
    assert easy < 0.5
    assert hard > 3


def test_the_rarest_tokens_of_the_largest_corpus_have_finite_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them was seen among as many tokens as a float64 counts exactly."""
    monkeypatch.setattr(difficulty, "SHIFT", np.uint64(64 - 22))
    counts = Counts.none(1000)
    counts.tokens[0] = 1 << 53
    ids = np.arange(1, 1000, dtype=np.uint32)
    bits = bits_a_token(ids, np.array([len(ids)]), np.zeros(1, np.int64), counts)
    assert bits[0] == pytest.approx(54, abs=0.1)


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match="outside a vocabulary"):
        bits_a_token(np.array([VOCABULARY]), np.array([1]), np.zeros(1, np.int64), Counts.none(VOCABULARY))
