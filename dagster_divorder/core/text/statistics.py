"""Two scores of a text: how far it compresses, and how varied its words are.

Letters: n texts, B bytes of UTF-8.

**Compression ratio**: bytes of the text over bytes once compressed. It rises as a text repeats itself. File compressors
give short texts a low ratio, because of headers and code tables, and long texts a high one, because each byte has more
text before it. Their ratio ranks by length (rank correlation 0.83 and 0.89 with raw deflate). So texts are compressed
in blocks of about BLOCK bytes, by a copy coder whose symbols cost their entropy. Among texts of equal length it ranks
as deflate does (0.95, 0.92); docs/decisions/curricula.md has the measurements.

**Lexical diversity**: the moving-average type-token ratio: the mean share of different words in all stretches of WINDOW
words. It does not depend on the number of words. A text with fewer words has no value. Words are those of
`core.text.minhash`.

Guarantee: a text's value depends only on the text, not on other texts or a compressor's version.
Cost: 0.01 s a megabyte for either score; 0.04 s for the diversity of texts that are not ASCII.
Sources: Ziv and Lempel 1977 (copies); Shaib et al. 2024 (the compression ratio of texts, original over compressed
size); Covington and McFall 2010 (the moving-average type-token ratio).
Known weakness: repetition at distances above BLOCK bytes is not seen. Below some 200 bytes ratios are noisy. Scripts
with more bytes a character have other ratios, so the ratio separates languages before quality; `curriculum.keep`
prevents that.
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
    # No text takes less than one byte.
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
