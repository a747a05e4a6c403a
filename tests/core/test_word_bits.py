"""Bits a word: against an obvious twin, and what clusterings of every kind tell."""

from collections import Counter
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dagster_divorder.core.topics.word_bits import SMOOTHING, word_bits
from tests.conftest import examples


def obvious(documents: list[set[int]], labels: list[int]) -> float:
    """Document by document, word by word."""
    saved, words = dict.fromkeys(SMOOTHING, 0.0), 0
    for half in range(2):
        own: dict[int, Counter[int]] = {}
        for at, document in enumerate(documents):
            if at % 2 != half:
                own.setdefault(labels[at], Counter()).update(document)
        whole = sum(own.values(), Counter())
        for at, document in enumerate(documents):
            for word in document if at % 2 == half else ():
                if not whole[word]:
                    continue
                words += 1
                counts, share = own.get(labels[at], Counter()), whole[word] / whole.total()
                for more in SMOOTHING:
                    foretold = (counts[word] + more * share) / (counts.total() + more)
                    saved[more] += log2(foretold / share)
    return max(0.0, *saved.values()) / max(1, words)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 6), max_size=8), st.integers(0, 3)), min_size=1, max_size=30)
)
def test_it_equals_its_obvious_twin(documents: list[tuple[list[int], int]]) -> None:
    counts = np.zeros((len(documents), 7), int)
    for row, (words, _) in zip(counts, documents, strict=True):
        np.add.at(row, words, 1)
    labels = [label for _, label in documents]
    expected = obvious([set(words) for words, _ in documents], labels)
    assert word_bits(csr_array(counts), np.array(labels), 4) == pytest.approx(expected, abs=1e-9)


def topical(n: int = 1000, words: int = 40, seed: int = 0) -> tuple[csr_array, np.ndarray]:
    """Documents of 4 topics, each of which uses a quarter of the words three times as often; and the topics."""
    random = np.random.default_rng(seed)
    topics = random.integers(0, 4, n)
    chance = np.where(np.arange(words) % 4 == topics[:, None], 0.3, 0.1)
    return csr_array((random.random((n, words)) < chance).astype(int)), topics


def test_topics_tell_words_and_noise_does_not() -> None:
    counts, topics = topical()
    random = np.random.default_rng(1)
    noise = random.integers(0, 4, len(topics))
    told = word_bits(counts, topics, 4)
    assert 0.15 < told < 0.2075  # what is known of the chances themselves
    assert word_bits(counts, noise, 4) < 0.002
    for nothing in (np.zeros_like(topics), np.arange(len(topics))):
        assert word_bits(counts, nothing, len(topics)) == pytest.approx(0, abs=1e-12)


def test_the_more_of_the_topics_is_right_the_more_is_told() -> None:
    counts, topics = topical()
    random = np.random.default_rng(1)
    order, other = random.permutation(len(topics)), random.integers(0, 4, len(topics))
    told = []
    for right in (1000, 800, 600, 400, 200, 0):
        labels = topics.copy()
        labels[order[right:]] = other[order[right:]]
        told.append(word_bits(counts, labels, 4))
    assert told == sorted(told, reverse=True)


def test_how_often_a_document_says_a_word_does_not_count() -> None:
    counts, topics = topical(100)
    assert word_bits(counts * 7, topics, 4) == word_bits(counts, topics, 4)
