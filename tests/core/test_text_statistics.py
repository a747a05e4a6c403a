"""Compression ratio and lexical diversity: the kernels against their twins, and no score by length."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.arrow import text_array
from dagster_divorder.core.kernels.text_statistics import compressed_bits
from dagster_divorder.core.text.statistics import BLOCK, WINDOW, compression_ratio, lexical_diversity
from tests.conftest import examples
from tests.twins import text_statistics as twin

WORDS = ["tide", "Anchor", "harbour", "sail", "reef", "Flut", "über", "и", "x9"]
repeated = st.text("abé", max_size=400) | st.binary(max_size=60).map(lambda raw: (raw * 9).hex())
"""Texts in which bytes come again."""


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(repeated, min_size=1, max_size=4), st.sampled_from([16, 64, BLOCK]))
def test_compressed_bits_are_those_of_the_twin(texts: list[str], block: int) -> None:
    raw = [text.encode() for text in texts]
    starts = np.concatenate([[0], np.cumsum([len(text) for text in raw])])
    bits = np.empty(len(raw))
    compressed_bits(np.frombuffer(bytearray().join(raw), np.uint8), starts, block, bits)
    assert np.allclose(bits, [twin.compressed_bits(text, block) for text in raw])


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=3 * WINDOW), min_size=1, max_size=4))
def test_lexical_diversity_is_that_of_the_twin(texts: list[list[str]]) -> None:
    ratios = lexical_diversity(text_array([", ".join(words).upper() for words in texts]))
    assert np.allclose(ratios, [twin.moving_ratio(words, WINDOW) for words in texts], equal_nan=True)


def test_a_slice_of_an_array_has_the_values_of_its_texts() -> None:
    texts = text_array([" ".join(np.random.default_rng(n).choice(WORDS, 30 + n)) for n in range(9)])
    for score in (compression_ratio, lexical_diversity):
        assert np.array_equal(score(texts.slice(3, 4)), score(texts)[3:7])
        assert len(score(texts.slice(0, 0))) == 0


def draw_texts(words: int, count: int = 200) -> pa.Array:
    """Texts of so many words of one vocabulary, the frequent ones as often as in any language."""
    rng = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    vocabulary = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(2000)]
    share = 1 / np.arange(1, 2001)
    return text_array([" ".join(rng.choice(vocabulary, words, p=share / share.sum())) for _ in range(count)])


@pytest.mark.parametrize(("score", "tolerance"), [(compression_ratio, 0.1), (lexical_diversity, 0.01)])
def test_texts_of_one_kind_score_alike_whatever_their_length(score: object, tolerance: float) -> None:
    """Deflate's ratio of the same texts rises by more than half."""
    assert callable(score)
    short, long = draw_texts(40), draw_texts(1600, 20)
    assert score(long).mean() == pytest.approx(score(short).mean(), rel=tolerance)
    deflated = [
        np.mean([len(text) / len(zlib.compress(text.encode(), 6, -15)) for text in texts.to_pylist()])
        for texts in (short, long)
    ]
    assert deflated[1] > 1.5 * deflated[0]


def test_repetition_raises_compression_and_lowers_diversity() -> None:
    varied = draw_texts(400, 1)[0].as_py()
    repeats = " ".join(varied.split()[:20] * 20)
    compressed, diverse = (
        score(text_array([varied, repeats])) for score in (compression_ratio, lexical_diversity)
    )
    assert compressed[1] > 4 * compressed[0]
    assert diverse[1] < 0.8 * diverse[0]


def test_texts_without_words_and_empty_ones_have_no_score() -> None:
    texts = text_array(["", "!!! ...", "one two", "a" * 3000, "字" * WINDOW])
    assert np.isnan(compression_ratio(texts)).tolist() == [True, False, False, False, False]
    assert compression_ratio(texts)[3] > 100
    diversity = lexical_diversity(texts)
    assert np.isnan(diversity).tolist() == [True, True, True, True, False]
    assert diversity[4] == pytest.approx(1 / WINDOW)
