"""Hot loops over texts: shingles of words as 64-bit hashes, MinHash signatures, and the similarity of two texts.

Letters: n texts, P slots of a signature, B bands of a signature, H texts of a small set. Twin: tests/twins/minhash.py.
Groups of texts are a forest in parent int64 (n,): the root of a group is its first text, its own parent.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel, kernel_part

SEPARATOR, LETTER, ALONE = 0, 1, 2
WORDS = 5
"""Words of a shingle, as in Lee et al. 2022."""

_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
"""Constants of FNV-1a (Fowler, Noll and Vo)."""
_STEP = np.uint64(0x9E3779B97F4A7C15)


def _kinds() -> NDArray[np.uint8]:
    """The kind of each code point, uint8 (0x110000,). Python's own tables would change with its Unicode version."""
    kinds = np.full(0x110000, LETTER, np.uint8)
    kinds[:0xC0] = SEPARATOR
    for first, last in ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)):
        kinds[first : last + 1] = LETTER
    # Thai, Lao, Tibetan, Burmese; Khmer; kana and Han: written without spaces.
    for first, last in (
        (0x0E00, 0x109F),
        (0x1780, 0x17FF),
        (0x2E80, 0x9FFF),
        (0xF900, 0xFAFF),
        (0x20000, 0x3FFFF),
    ):
        kinds[first : last + 1] = ALONE
    # Punctuation: general, supplemental, of Han, in small and wide forms.
    for first, last in (
        (0x2000, 0x206F),
        (0x2E00, 0x2E7F),
        (0x3000, 0x303F),
        (0xFE10, 0xFE6F),
        (0xFF00, 0xFF0F),
        (0xFF1A, 0xFF20),
        (0xFF3B, 0xFF40),
        (0xFF5B, 0xFF65),
    ):
        kinds[first : last + 1] = SEPARATOR
    return kinds


KINDS = _kinds()


@kernel_part
def mixed(value: np.uint64) -> np.uint64:
    """Mixes all bits of a 64-bit number into every bit: MurmurHash3's finaliser (Appleby)."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@kernel_part
def word_hashes(data: NDArray[np.uint8], kinds: NDArray[np.uint8], hashes: NDArray[np.uint64]) -> int:
    """Writes the hash of each word of a text into hashes, in order; returns their number. `hashes` needs room for half
    of the bytes plus one.

    Reads data (bytes,), valid UTF-8, and kinds (0x110000,).
    """
    words = at = 0
    word, inside = _START, False
    while at < len(data):
        lead = np.int64(data[at])
        size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        point = lead if size == 1 else lead & (0x7F >> size)
        for behind in range(at + 1, at + size):
            point = point << 6 | (np.int64(data[behind]) & 0x3F)
        at += size
        kind = kinds[point]
        if kind != LETTER and inside:
            hashes[words] = mixed(word)
            words += 1
            word, inside = _START, False
        if kind != SEPARATOR:
            if 0x41 <= point <= 0x5A:
                point += 0x20
            word = (word ^ np.uint64(point)) * _PRIME
            inside = True
        if kind == ALONE:
            hashes[words] = mixed(word)
            words += 1
            word, inside = _START, False
    if inside:
        hashes[words] = mixed(word)
        words += 1
    return words


@kernel
def shingles(data: NDArray[np.uint8], kinds: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Hashes of every WORDS consecutive words of a text, uint64 (s,), in order. A shorter text has one, of all its
    words; a text without words has one, of its bytes.

    Reads data (bytes,), valid UTF-8, and kinds (0x110000,).
    """
    hashes = np.empty(len(data) // 2 + 1, np.uint64)
    words = word_hashes(data, kinds, hashes)
    if words == 0:
        word = _START
        for byte in data:
            word = (word ^ np.uint64(byte)) * _PRIME
        hashes[0] = mixed(word)
        words = 1
    length = min(WORDS, words)
    for first in range(words - length + 1):
        shingle = np.uint64(length)
        for word_hash in hashes[first : first + length]:
            shingle = mixed(shingle * _STEP + word_hash)
        hashes[first] = shingle
    return hashes[: words - length + 1]


@kernel
def signatures(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    signature: NDArray[np.uint32],
) -> None:
    """signature[i, p] = the least h_p over the shingles of text i; h_p(x) is the upper half of a_p x + b_p, a_p odd.

    Reads data, the texts end to end, and ends (n + 1,): text i is data[ends[i]:ends[i + 1]]. Writes signature (n, P).
    """
    slots = signature.shape[1]
    factors, terms = np.empty(slots, np.uint64), np.empty(slots, np.uint64)
    for slot in range(slots):
        factors[slot] = mixed(np.uint64(2 * slot + 1) * _STEP) | np.uint64(1)
        terms[slot] = mixed(np.uint64(2 * slot + 2) * _STEP)
    signature[:] = 0xFFFFFFFF
    for text in range(len(signature)):
        row = signature[text]
        for shingle in shingles(data[ends[text] : ends[text + 1]], kinds):
            for slot in range(slots):
                row[slot] = min(
                    row[slot], np.uint32((factors[slot] * shingle + terms[slot]) >> np.uint64(32))
                )


@kernel_part
def jaccard(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """Jaccard similarity of two sets, each rising, without repeats, not empty."""
    both = at_one = at_other = 0
    while at_one < len(one) and at_other < len(other):
        if one[at_one] == other[at_other]:
            both += 1
            at_one += 1
            at_other += 1
        elif one[at_one] < other[at_other]:
            at_one += 1
        else:
            at_other += 1
    return both / (len(one) + len(other) - both)


@kernel
def nearest(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    signature: NDArray[np.uint32],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    of_key: NDArray[np.int64],
    few: NDArray[np.uint32],
    sets: NDArray[np.uint64],
    set_ends: NDArray[np.int64],
    least: int,
    closest: NDArray[np.int64],
    similarity: NDArray[np.float64],
) -> None:
    """closest[i] = the text of H with the largest Jaccard similarity of shingles to text i, the first of equal ones; -1
    without a candidate.

    Candidates share a band with the text, and at least `least` slots. Reads data and ends (n + 1,), the texts, kinds
    and signature (n, P); first and last (n, B): band b's candidates are of_key[b, first:last], of_key (B, H); few
    (H, P), the signatures of the H; sets and set_ends (H + 1,), their shingles, rising, without repeats. Writes closest
    and similarity (n,).
    """
    seen = np.full(len(few), -1, np.int64)
    for text in range(len(signature)):
        closest[text], similarity[text] = -1, 0.0
        own = np.empty(0, np.uint64)
        for band in range(first.shape[1]):
            for at in range(first[text, band], last[text, band]):
                other = of_key[band, at]
                if seen[other] == text:
                    continue
                seen[other] = text
                equal = 0
                for slot in range(few.shape[1]):
                    equal += signature[text, slot] == few[other, slot]
                if equal < least:
                    continue
                if len(own) == 0:
                    own = shingles(data[ends[text] : ends[text + 1]], kinds)
                    own.sort()
                    distinct = 1
                    for place in range(1, len(own)):
                        if own[place] != own[place - 1]:
                            own[distinct] = own[place]
                            distinct += 1
                    own = own[:distinct]
                alike = jaccard(own, sets[set_ends[other] : set_ends[other + 1]])
                if alike > similarity[text] or (alike == similarity[text] and other < closest[text]):
                    closest[text], similarity[text] = other, alike


@kernel_part
def root(parent: NDArray[np.int64], text: int) -> int:
    """The first text of a text's group. Shortens the text's path in parent (n,)."""
    while parent[text] != text:
        parent[text] = parent[parent[text]]
        text = parent[text]
    return text


@kernel
def bucket_pairs(
    members: NDArray[np.int64],
    begins: NDArray[np.int64],
    signature: NDArray[np.uint32],
    parent: NDArray[np.int64],
    least: int,
    sure: int,
    most: int,
) -> NDArray[np.int64]:
    """Pairs of texts of a bucket with at least `least` equal slots, as first * n + second, int64 (Q,).

    A text is compared with the last `most` representatives of its bucket. In a bucket of up to `most` texts every text
    is a representative; in a larger bucket, only a text with fewer than `sure` equal slots with each of these. Pairs
    with `sure` equal slots become one group; texts of a group are not compared with each other.
    Reads members (bucket b's texts, rising: members[begins[b]:begins[b + 1]]) and signature (n, P). Writes parent (n,).
    """
    codes, pairs = np.empty(1024, np.int64), 0
    kept = np.empty(most, np.int64)
    for bucket in range(len(begins) - 1):
        small, stand = begins[bucket + 1] - begins[bucket] <= most, 0
        for at in range(begins[bucket], begins[bucket + 1]):
            text, alone = members[at], True
            for place in range(min(stand, most)):
                other = kept[place]
                own_root, other_root = root(parent, text), root(parent, other)
                if own_root == other_root:
                    alone = False
                    continue
                equal = 0
                for slot in range(signature.shape[1]):
                    equal += signature[text, slot] == signature[other, slot]
                if equal < least:
                    continue
                if pairs == len(codes):
                    longer = np.empty(2 * pairs, np.int64)
                    for place in range(pairs):
                        longer[place] = codes[place]
                    codes = longer
                codes[pairs] = other * len(parent) + text
                pairs += 1
                if equal >= sure:
                    parent[max(own_root, other_root)] = min(own_root, other_root)
                    alone = False
            if small or alone:
                kept[stand % most] = text
                stand += 1
    return codes[:pairs]


@kernel
def link(
    pairs: NDArray[np.int64],
    sets: NDArray[np.uint64],
    spans: NDArray[np.int64],
    least: float,
    parent: NDArray[np.int64],
    similarity: NDArray[np.float64],
) -> None:
    """Joins the groups of every pair at least as similar as `least`; similarity[i] = the similarity of text i to the
    first text of its group.

    Reads pairs (Q, 2), and each text's shingles, rising without repeats, at spans (n, 2) of sets. Writes parent and
    similarity (n,).
    """
    for pair in range(len(pairs)):
        own, other = pairs[pair, 0], pairs[pair, 1]
        own_root, other_root = root(parent, own), root(parent, other)
        if own_root == other_root:
            continue
        if jaccard(sets[spans[own, 0] : spans[own, 1]], sets[spans[other, 0] : spans[other, 1]]) >= least:
            parent[max(own_root, other_root)] = min(own_root, other_root)
    for text in range(len(parent)):
        first = root(parent, text)
        parent[text] = first
        similarity[text] = jaccard(
            sets[spans[first, 0] : spans[first, 1]], sets[spans[text, 0] : spans[text, 1]]
        )
