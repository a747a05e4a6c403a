"""MinHash signatures of texts, from which near copies are found without holding one text against another.

Letters: n texts, P slots of a signature.

A text is the set of its shingles, every five consecutive words. Words are runs of letters and digits, ASCII letters in
small ones; a character of a script that is written without spaces (Han, kana, Thai, Lao, Tibetan, Burmese, Khmer) is
a word. Spaces, punctuation and marks of ASCII and Latin-1 count for nothing. A text of fewer words is one shingle.

Guarantee: a signature is a function of the text alone, on every machine and whatever the versions of Python, Unicode
and NumPy. Two signatures have the same number in a slot with a probability of the two sets' Jaccard similarity, so that
the share of equal slots estimates it to sqrt(J (1 - J) / P), 0.035 at J = 0.8.
Cost: O(shingles P); some 150 MB of text a second and core.
Sources: Broder 1997 (resemblance of documents, by the least hashes of their shingles); Dietzfelbinger, Hagerup,
Katajainen and Penttonen 1997 (multiply-shift hashes); Lee et al. 2022 (shingles of five words, near copies from 0.8
on).
Known weakness: a short text within a long one is not near it, and letters that are not ASCII keep their case.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels.minhash import KINDS
from dagster_divorder.core.kernels.minhash import shingles as shingles_of
from dagster_divorder.core.kernels.minhash import signatures as write_signatures

if TYPE_CHECKING:
    import pyarrow as pa

SLOTS = 128


def shingles(texts: pa.Array) -> list[NDArray[np.uint64]]:
    """The distinct shingles of each of n texts (string or large_string), as 64-bit hashes, rising."""
    data, ends = text_bytes(texts)
    return [np.unique(shingles_of(data[first:end], KINDS)) for first, end in pairwise(ends)]


def signatures(texts: pa.Array) -> NDArray[np.uint32]:
    """uint32 (n, SLOTS) of n texts (string or large_string)."""
    made = np.empty((len(texts), SLOTS), np.uint32)
    write_signatures(*text_bytes(texts), KINDS, made)
    return made


def text_bytes(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(UTF-8 of n texts end to end; int64 (n + 1,): where each begins in it, and the end), both over Arrow's memory
    where it has 64-bit offsets."""
    import pyarrow as pa

    texts = texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    return np.frombuffer(data or b"", np.uint8), ends
