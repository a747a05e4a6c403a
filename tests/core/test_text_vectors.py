"""Vectors of texts: the kernel finds the words that `terms` finds, and a batch changes no byte."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dagster_divorder.core.topics.terms import count_words
from dagster_divorder.core.vectors import text_vectors
from dagster_divorder.core.vectors.text_vectors import CHARACTERS, TextVectors, beginning
from tests.conftest import examples

ALPHABET = "ab_1Kß Σς.,-é\u0301İ漢字東タワーーのがกดีม็า฿\U00020000\U0001f600\u200d٣हिन्दी\ud800\0"
"""Of every kind of character: marks, digits, scripts with spaces and without, four bytes long, none that UTF-8 has."""


def counting(words):
    """Vectors in which every word has an axis of its own."""
    encoded = [word.encode() for word in words.vocabulary]
    starts = np.cumsum([0, *map(len, encoded)])
    letters = np.frombuffer(bytearray().join(encoded), np.uint8)
    ones = np.ones(len(encoded), np.float32)
    return TextVectors(letters=letters, starts=starts, table=np.diag(ones), weights=ones)


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.text(ALPHABET, max_size=24), min_size=1, max_size=12))
def test_the_words_found_are_those_that_terms_counts(texts):
    texts = [*map(beginning, texts), "a" * 39 + " " + "b" * 40 + " " + "a" * 41, "__ab__ _", ""]
    words = count_words(pa.array(texts, pa.large_string()))
    counts = words.counts.toarray().astype(float)
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    expected = np.divide(counts, lengths, out=np.zeros_like(counts), where=lengths > 0)
    found = counting(words).vectors(texts)
    assert_allclose(found, expected, atol=1e-6)
    for row, text in zip(found, texts, strict=True):
        assert_array_equal(counting(words).vectors([text])[0], row)


def test_words_outside_the_vocabulary_and_behind_the_beginning_count_for_nothing():
    vectors = counting(count_words(pa.array(["tide wave"], pa.large_string())))
    found = vectors.vectors(["tide", "tide boat", f"tide{' ' * CHARACTERS}wave", "boat", "", "tid e"])
    assert_array_equal(found, [[1, 0]] * 3 + [[0, 0]] * 3)


def test_texts_without_a_word_in_common_lie_close_where_their_words_share_texts():
    rng = np.random.default_rng(0)
    groups = [[f"{name}{number}" for number in range(200)] for name in ("north", "south")]
    texts = [" ".join(rng.choice(groups[at % 2], 12, replace=False)) for at in range(400)]
    fitted = text_vectors.fit(texts, count_words(pa.array(texts, pa.large_string())))
    first, second, other = fitted.vectors(
        [" ".join(words) for words in (groups[0][:100], groups[0][100:], groups[1][:100])]
    )
    assert first @ second > 0.7
    assert abs(first @ other) < 0.1
