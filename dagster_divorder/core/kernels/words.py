"""The hot loop over the characters of texts that finds words of a vocabulary.

Letters: n texts, B bytes of UTF-8, W words of the vocabulary, H slots of its table.

Guarantee: the words found in a text depend on that text alone. The GIL is released.
Twin: `core/topics/terms.py`, which defines words. Known weakness: two words with the same 64-bit hash count as one.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel, kernel_part
from dagster_divorder.core.topics.terms import LONGEST, SHORTEST

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
Keys = NDArray[np.uint64]
Ids = NDArray[np.uint32]

BREAK, LETTER, OTHER, KATAKANA, HAN, SOUTH_EAST, MARK = range(7)
"""Kinds of characters: between words; a letter; a digit, a mark or "_"; Katakana; two scripts whose words are pairs of
characters; a mark that belongs to the South-East Asian character before it."""

KINDS = 0x20000
"""Code points in the table of kinds. Han characters follow, up to HAN_END."""
HAN_END = 0x40000

BASIS, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
"""Constants of the hash FNV-1a."""


@kernel_part
def find_slot(text: Bytes, start: int, end: int, keys: Keys) -> tuple[np.uint64, np.uint64]:
    """The slot of text[start:end] by linear probing, the first free one if the table lacks it, and its key: FNV-1a with
    its high bits folded into the low ones. No key is 0, which marks a free slot."""
    key = BASIS
    for at in range(start, end):
        key = (key ^ np.uint64(text[at])) * PRIME
    key ^= key >> np.uint64(32)
    if key == np.uint64(0):
        key = np.uint64(1)
    last = np.uint64(len(keys) - 1)
    slot = key & last
    while keys[slot] != np.uint64(0) and keys[slot] != key:
        slot = (slot + np.uint64(1)) & last
    return slot, key


@kernel
def fill_table(text: Bytes, starts: Counts, keys: Keys, values: Ids) -> None:
    """Gives word i, text[starts[i]:starts[i + 1]], a slot with the value i.

    Reads text (B,), starts (W + 1,); writes keys and values (H,), zero before, H a power of two above W. O(B).
    """
    for word in range(len(starts) - 1):
        slot, key = find_slot(text, starts[word], starts[word + 1], keys)
        keys[slot], values[slot] = key, word


@kernel
def find_words(
    text: Bytes, starts: Counts, kinds: Bytes, keys: Keys, values: Ids, ids: Ids, counts: Counts
) -> int:
    """Writes the values of each text's words in the table, in the order of the text; returns their number.

    Reads text (B,), text i in [starts[i], starts[i + 1]), kinds (KINDS,) by code point, keys and values (H,); writes
    ids, room for B / 2, and counts (n,), the ids of each text. O(B).
    """
    total = 0
    for number in range(len(starts) - 1):
        before = total
        at, stop = starts[number], starts[number + 1]
        # A word, or a pair whose second character starts at `second`, lies in [start, end). `length` counts its
        # characters without underscores at either end, `longer` those with trailing underscores.
        start, second, end = at, at, at
        run, length, longer, letters = BREAK, 0, 0, False
        while at <= stop:
            here, kind = at, BREAK
            code = np.int64(0)
            if at < stop:
                code = np.int64(text[at])
                if code >= 0x80:
                    following = 1 if code < 0xE0 else 2 if code < 0xF0 else 3
                    code &= 0x3F >> following
                    for _ in range(following):
                        at += 1
                        code = code << 6 | np.int64(text[at] & np.uint8(0x3F))
                kind = kinds[code] if code < KINDS else HAN if code < HAN_END else BREAK
            at += 1
            goes_on = kind == run or (run == LETTER and kind == OTHER) or (run == SOUTH_EAST and kind == MARK)
            if run >= HAN:
                complete = second > start and (kind == run or not goes_on)
            else:
                complete = not goes_on and letters and SHORTEST <= length <= LONGEST
            if complete:
                slot, key = find_slot(text, start, end, keys)
                if keys[slot] == key:
                    ids[total] = values[slot]
                    total += 1
            if not goes_on:
                run = LETTER if kind == OTHER else SOUTH_EAST if kind == MARK else kind
                start, second, end = here, here, here
                length, longer, letters = 0, 0, False
            elif run >= HAN and kind == run:
                start, second = second, here
            if code != 0x5F:
                longer += 1
                length, end = longer, at
            elif length:
                longer += 1
            else:
                start = at
            letters |= kind in (LETTER, KATAKANA)
        counts[number] = total - before
    return total
