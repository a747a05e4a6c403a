"""MinHash signatures: texts with many equal slots are near copies, found without comparing texts pair by pair.

Letters: n texts, P slots of a signature.

A text is the set of its shingles: every five consecutive words. Words are runs of letters and digits after Unicode's
case folding and NFKC. In scripts without spaces (Han, kana, Thai, Lao, Tibetan, Burmese, Khmer) each character is a
word. Spaces, and the punctuation of ASCII and Latin-1, are ignored. A text of fewer than five words is one shingle.

Guarantee: a signature depends only on the text, not on the machine or NumPy's version. Unicode never changes the
folding of a character; characters newer than Python's `unicodedata` stay as they are. The probability that two
signatures agree in a slot is the sets' Jaccard similarity J. So the share of equal slots estimates J, with a standard
deviation of sqrt(J (1 - J) / P), 0.035 at J = 0.8.
Cost: O(shingles P); some 90 MB of ASCII text a second and core, 30 MB of other text.
Sources: Broder 1997 (resemblance of documents, by the least hashes of their shingles); Dietzfelbinger, Hagerup,
Katajainen and Penttonen 1997 (multiply-shift hashes); Lee et al. 2022 (shingles of five words, near copies from 0.8
on).
Known weakness: a short text contained in a long one is not near it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from unicodedata import normalize

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
    signed = np.empty((len(texts), SLOTS), np.uint32)
    write_signatures(*text_bytes(texts), KINDS, signed)
    return signed


def text_bytes(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(UTF-8 of n texts end to end, folded if not ASCII; offsets int64 (n + 1,)). ASCII texts with 64-bit offsets are
    not copied."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = texts.cast(pa.large_string())
    beyond = pc.invert(pc.string_is_ascii(texts))
    if len(foreign := texts.filter(beyond)):
        # NFKC, not NFC: a ligature, a wide letter or an Arabic presentation form says nothing about the content.
        folded = [normalize("NFKC", normalize("NFKC", text).casefold()) for text in foreign.to_pylist()]
        texts = pc.replace_with_mask(texts, beyond, pa.array(folded, pa.large_string()))
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    return np.frombuffer(data or b"", np.uint8), ends
