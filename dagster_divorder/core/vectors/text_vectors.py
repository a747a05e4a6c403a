"""Vectors of texts from their words, without a tokenizer or a model.

Letters: n texts, W words of the vocabulary, T words found in all texts, D dims.

`core/topics/terms.py` defines words. The WORDS words that occur in the most texts of a sample get vectors from their
co-occurrence in texts (`core/vectors/ppmi.py`). The vector of a text is the sum over its words, weighted by idf
(`core/vectors/pool.py`).

Guarantee: the same sample gives the same vectors for any number of threads. A text's vector depends only on the text
and the fit.
Cost: fit 0.1 s a megabyte and some 4 s; vectors O(characters), 30 us for a single text of 1,000; 0.5 KB a word.
Known weakness: words that the sample lacks are ignored. Measurements: docs/decisions/topics.md.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.topics.terms import HAN, HIRAGANA, KATAKANA, SOUTH_EAST, Words
from dagster_divorder.core.vectors.pool import pool, token_weights

WORDS, DIMS = 32_768, 128
LEAST_DIMS, WORDS_A_DIM = 8, 128
"""Fewest dims, and words for each dim: with as many dims as words no two words would be alike."""

CHARACTERS = 16_384
"""Characters that are read of a text; a book costs no more than a chapter."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TextVectors:
    """A vocabulary and its vectors: word i is letters[starts[i]:starts[i + 1]].

    letters: uint8, UTF-8. starts: int64 (W + 1,). table: float32 (W, D). weights: float32 (W,).
    """

    letters: NDArray[np.uint8]
    starts: NDArray[np.int64]
    table: NDArray[np.float32]
    weights: NDArray[np.float32]

    @cached_property
    def _slots(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        return _slots(self.letters, self.starts)

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, float32 (n, D); zero for a text without a word of the vocabulary."""
        return pool(*_find(texts, *self._slots), self.table, self.weights)


def fit(texts: Sequence[str], words: Words, *, seed: int = 0) -> TextVectors:
    """Word vectors from texts (n,), n >= 1. words: from `terms.count_words` on the same texts."""
    from dagster_divorder.core.vectors.ppmi import token_vectors

    used = np.bincount(words.counts.indices, minlength=len(words.vocabulary))
    kept = np.sort(np.argsort(-used, kind="stable")[:WORDS])
    letters, starts = _joined([words.vocabulary[word].encode() for word in kept.tolist()])
    dims = min(DIMS, max(LEAST_DIMS, len(kept) // WORDS_A_DIM))
    table = token_vectors(*_find(texts, *_slots(letters, starts)), len(kept), dims, seed=seed).vectors
    weights = token_weights(used[kept], len(texts), "idf")
    return TextVectors(letters=letters, starts=starts, table=table, weights=weights)


def beginning(text: str) -> str:
    """The part of a text that is read, with lone surrogates replaced."""
    return text[:CHARACTERS].encode("utf-8", "replace").decode()


def _find(
    texts: Sequence[str], keys: NDArray[np.uint64], values: NDArray[np.uint32]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """(ids of the vocabulary's words in each text, uint32 (T,), text after text; their number in each text, int64
    (n,))."""
    from dagster_divorder.core.kernels.words import find_words

    composed = (unicodedata.normalize("NFC", text[:CHARACTERS]) for text in texts)
    letters, starts = _joined([text.casefold().encode("utf-8", "replace") for text in composed])
    ids, counts = np.empty(len(letters) // 2 + 1, np.uint32), np.empty(len(texts), np.int64)
    total = find_words(letters, starts, _kinds(), keys, values, ids, counts)
    return ids[:total], counts


def _joined(texts: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(texts (n,) end to end, uint8; their offsets, int64 (n + 1,))."""
    starts = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=starts[1:])
    # Writable like arrays from files, so that numba compiles one version.
    return np.frombuffer(bytearray().join(texts), np.uint8), starts


def _slots(
    letters: NDArray[np.uint8], starts: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """(keys, values) of the hash table in which `find_words` looks up words."""
    from dagster_divorder.core.kernels.words import fill_table

    slots = 1 << (2 * len(starts)).bit_length()
    keys, values = np.zeros(slots, np.uint64), np.zeros(slots, np.uint32)
    fill_table(letters, starts, keys, values)
    return keys, values


@cache
def _kinds() -> NDArray[np.uint8]:
    """Kind of each code point, uint8 (KINDS,); see `kernels.words`."""
    from dagster_divorder.core.kernels import words

    characters = "".join(map(chr, range(words.KINDS)))
    categories = np.array([unicodedata.category(character) for character in characters])
    major = categories.astype("U1")
    kinds = np.where(major == "L", words.LETTER, words.OTHER).astype(np.uint8)
    for script, kind in (
        (HIRAGANA, words.BREAK),
        (KATAKANA, words.KATAKANA),
        (HAN, words.HAN),
        (SOUTH_EAST, words.SOUTH_EAST),
    ):
        for run in re.finditer(f"[{script}]+", characters):
            kinds[run.start() : run.end()] = kind
    kinds[(kinds == words.SOUTH_EAST) & np.isin(categories, ("Mn", "Mc"))] = words.MARK
    kinds[~np.isin(major, ("L", "M", "N")) & (np.array(list(characters)) != "_")] = words.BREAK
    return kinds
