"""Two scores of a text alone: how far it compresses, and how varied its words are.

Letters: n texts, B bytes of UTF-8.

**Compression ratio**: bytes of the text over bytes once compressed. It rises as a text repeats itself. Compressors of
files give short texts a low ratio, since they write headers and tables of codes, and long texts a high one, since more
text lies behind each byte. The ratio then ranks by length (rank correlation 0.83 and 0.89 with raw deflate). So texts
are compressed in blocks of about BLOCK bytes, by a copy coder whose symbols cost their entropy. Among texts of equal
length it ranks as deflate does (0.95, 0.92); docs/decisions/curricula.md has the measurements.

**Lexical diversity**: the moving-average type-token ratio, the share of different words in every stretch of WINDOW
words, averaged. It does not depend on the number of words. A text with fewer words has none. Words are those of
`core.text.minhash`.

Guarantee: a text's value depends on that text alone, on no other text and on no version of a compressor.
Cost: 0.01 s a megabyte for the ratio; for the diversity as much, and 0.04 where texts are not ASCII.
Sources: Ziv and Lempel 1977 (copies); Shaib et al. 2024 (the compression ratio of texts, original over compressed
size); Covington and McFall 2010 (the moving-average type-token ratio).
Known weakness: repetition at distances above BLOCK bytes is not seen. Below some 200 bytes ratios are noisy. Scripts
with more bytes a character have other ratios, so languages are told apart before quality is (`curriculum.keep`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 1024
WINDOW = 25


def compression_ratio(texts: pa.Array) -> NDArray[np.float64]:
    """Compression ratios of texts, large_string (n,): float64 (n,), NaN for an empty text."""
    from dagster_divorder.core.kernels.text_statistics import compressed_bits

    _, offsets, data = texts.buffers()
    starts = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8)
    bits, sizes = np.empty(len(texts)), np.diff(starts)
    compressed_bits(np.frombuffer(data or b"", np.uint8), starts, BLOCK, bits)
    # No text takes less than a byte.
    return np.divide(8 * sizes, np.maximum(bits, 8.0), out=np.full(len(texts), np.nan), where=sizes > 0)


def lexical_diversity(texts: pa.Array) -> NDArray[np.float64]:
    """Moving-average type-token ratios of texts, large_string (n,): float64 (n,) in (0, 1], NaN for fewer than WINDOW
    words."""
    from dagster_divorder.core.kernels.minhash import KINDS
    from dagster_divorder.core.kernels.text_statistics import moving_ratio
    from dagster_divorder.core.text.minhash import text_bytes

    ratios = np.empty(len(texts))
    moving_ratio(*text_bytes(texts), KINDS, WINDOW, ratios)
    return ratios
