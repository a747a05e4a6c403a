"""Hot loops of `core.text.statistics`: bits of a text when compressed, and the words that are new to a window.

Letters: n texts, B bytes of UTF-8, W words of a text.

Guarantee: a text's value depends on that text alone, and on no library's version. The GIL is released.
Twins: tests/twins/text_statistics.py. Known weakness: two words with the same 64-bit hash count as one.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel, kernel_part
from dagster_divorder.core.kernels.minhash import word_hashes

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
Doubles = NDArray[np.float64]

SLOTS = 1 << 16
SHORTEST_MATCH, LONGEST_MATCH = 4, 258
LITERALS = 256
SIZES = 9
"""Symbols for the sizes of matches: the bits of a size minus SHORTEST_MATCH - 1."""
DISTANCES = 64
SYMBOLS = LITERALS + SIZES


@kernel_part
def _slot(text: Bytes, at: int) -> np.uint64:
    """The slot of four bytes, by Fibonacci hashing (Knuth, volume 3, 6.4)."""
    four = np.uint64(0)
    for place in range(SHORTEST_MATCH):
        four |= np.uint64(text[at + place]) << np.uint64(8 * place)
    return (four * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)


@kernel_part
def _entropy_bits(counts: Counts) -> float:
    """Bits that symbols with `counts` occurrences take, by their own shares."""
    total, bits = counts.sum(), 0.0
    for count in counts:
        if count:
            bits -= count * np.log2(count / total)
    return bits


@kernel_part
def block_bits(text: Bytes, start: int, end: int, latest: Counts) -> float:
    """Bits of text[start:end] as literals and as copies of earlier bytes of it.

    A copy is the longest match, of at least SHORTEST_MATCH bytes, with the latest place whose first four bytes are in
    the same slot. Literals and the bit lengths of sizes are coded by their shares in the block, and the bit lengths of
    distances by theirs. The lower bits of sizes and distances are not compressed.
    Reads text (B,); changes latest (SLOTS,), whose entries before `start` are ignored. O(end - start).
    """
    symbols, distances = np.zeros(SYMBOLS, np.int64), np.zeros(DISTANCES, np.int64)
    lower_bits = 0
    at = start
    while at < end:
        size, distance = 0, 0
        if at + SHORTEST_MATCH <= end:
            before = latest[_slot(text, at)]
            if start <= before < at:
                distance = at - before
                while size < LONGEST_MATCH and at + size < end and text[before + size] == text[at + size]:
                    size += 1
        if size >= SHORTEST_MATCH:
            for number, counts, first in (
                (size - SHORTEST_MATCH + 1, symbols, LITERALS),
                (distance, distances, 0),
            ):
                bits = 0
                while number >> (bits + 1):
                    bits += 1
                counts[first + bits] += 1
                lower_bits += bits
        else:
            symbols[text[at]] += 1
            size = 1
        for place in range(at, min(at + size, end - SHORTEST_MATCH + 1)):
            latest[_slot(text, place)] = place
        at += size
    return lower_bits + _entropy_bits(symbols) + _entropy_bits(distances)


@kernel
def compressed_bits(text: Bytes, starts: Counts, block: int, bits: Doubles) -> None:
    """bits[i] = the sum of `block_bits` over text i in equal blocks, round(size / block) of them, at least one.

    Reads text (B,), text i in [starts[i], starts[i + 1]); writes bits (n,). O(B).
    """
    latest = np.full(SLOTS, -1, np.int64)
    for i in range(len(bits)):
        first, size = starts[i], starts[i + 1] - starts[i]
        blocks = max(1, (2 * size + block) // (2 * block))
        bits[i] = 0.0
        for part in range(blocks):
            bits[i] += block_bits(
                text, first + size * part // blocks, first + size * (part + 1) // blocks, latest
            )


@kernel
def moving_ratio(text: Bytes, starts: Counts, kinds: Bytes, window: int, ratios: Doubles) -> None:
    """ratios[i] = the mean, over all stretches of `window` words of text i, of different words / window; NaN for a text
    with fewer words.

    A word counts in the stretches that hold it and none of its earlier occurrences.
    Reads text (B,), text i in [starts[i], starts[i + 1]), and kinds (0x110000,); writes ratios (n,). O(B +
    W window).
    """
    longest = 0
    for i in range(len(ratios)):
        longest = max(longest, starts[i + 1] - starts[i])
    hashes = np.empty(longest // 2 + 1, np.uint64)
    for i in range(len(ratios)):
        words = word_hashes(text[starts[i] : starts[i + 1]], kinds, hashes)
        stretches = words - window + 1
        if stretches < 1:
            ratios[i] = np.nan
            continue
        different = 0
        for at in range(words):
            first = max(0, at - window + 1)
            for before in range(at - 1, first - 1, -1):
                if hashes[before] == hashes[at]:
                    first = before + 1
                    break
            different += max(0, min(at, stretches - 1) - first + 1)
        ratios[i] = different / (stretches * window)
