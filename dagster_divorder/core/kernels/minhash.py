"""Hot loops over texts: shingles of words as 64-bit hashes, MinHash signatures, and how alike two texts are.

Letters: n texts, P slots of a signature, B bands of a signature, H texts of a small set. Twin: tests/twins/minhash.py.
Groups of texts are a forest in parent int64 (n,): a text that is its own parent is the root of a group, its first text.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

SEPARATOR, LETTER, ALONE = 0, 1, 2
WORDS = 5
"""Words of a shingle, as Lee et al. 2022 count them."""

_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
"""Of FNV-1a (Fowler, Noll and Vo)."""
_STEP = np.uint64(0x9E3779B97F4A7C15)


def _kinds() -> NDArray[np.uint8]:
    """What each code point is, uint8 (0x110000,). A table of its own, since that of Python's `str` follows Unicode from
    version to version."""
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
    # Punctuation in general, more of it, of Han, and in forms that are small or wide.
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


@njit(cache=True, nogil=True)
def mixed(value: np.uint64) -> np.uint64:
    """A 64-bit number that every bit of another one decides: MurmurHash3's finaliser (Appleby)."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@njit(cache=True, nogil=True)
def shingles(data: NDArray[np.uint8], kinds: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Hashes of every WORDS consecutive words of a text, uint64 (s,), in their order; of a shorter text one, of all its
    words; of one without words one, of its bytes.

    Reads data (bytes,), valid UTF-8, and kinds (0x110000,).
    """
    found = np.empty(len(data) // 2 + 1, np.uint64)
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
            found[words] = mixed(word)
            words += 1
            word, inside = _START, False
        if kind != SEPARATOR:
            if 0x41 <= point <= 0x5A:
                point += 0x20
            word = (word ^ np.uint64(point)) * _PRIME
            inside = True
        if kind == ALONE:
            found[words] = mixed(word)
            words += 1
            word, inside = _START, False
    if not inside and words == 0:
        for byte in data:
            word = (word ^ np.uint64(byte)) * _PRIME
        inside = True
    if inside:
        found[words] = mixed(word)
        words += 1
    length = min(WORDS, words)
    for first in range(words - length + 1):
        shingle = np.uint64(length)
        for one in found[first : first + length]:
            shingle = mixed(shingle * _STEP + one)
        found[first] = shingle
    return found[: words - length + 1]


@njit(cache=True, nogil=True)
def signatures(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    signature: NDArray[np.uint32],
) -> None:
    """signature[i, p] = the least of h_p over the shingles of text i: h_p(x) is the upper half of a_p x + b_p, a_p odd.

    Reads data, the texts end to end, and ends (n + 1,), where each begins, and the end. Writes signature (n, P).
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


@njit(cache=True, nogil=True)
def jaccard(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """Share of the members of two sets that are in both; each rising, every member once, neither empty."""
    both = here = there = 0
    while here < len(one) and there < len(other):
        if one[here] == other[there]:
            both += 1
            here += 1
            there += 1
        elif one[here] < other[there]:
            here += 1
        else:
            there += 1
    return both / (len(one) + len(other) - both)


@njit(cache=True, nogil=True)
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
    found: NDArray[np.int64],
    similarity: NDArray[np.float64],
) -> None:
    """found[i] = the one of H texts whose shingles are most similar to those of text i, by their Jaccard similarity,
    of equally similar ones the first; -1 where no candidate is.

    Candidates share a band with the text, and at least `least` slots. Reads data and ends (n + 1,), the texts, kinds
    and signature (n, P); first and last (n, B): the places in of_key[b] (H,) of the candidates by band b; few (H, P),
    the signatures of the H; sets and set_ends (H + 1,), their shingles, rising, each once. Writes found and similarity
    (n,).
    """
    seen = np.full(len(few), -1, np.int64)
    for text in range(len(signature)):
        found[text], similarity[text] = -1, 0.0
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
                    own = np.unique(shingles(data[ends[text] : ends[text + 1]], kinds))
                alike = jaccard(own, sets[set_ends[other] : set_ends[other + 1]])
                if alike > similarity[text] or (alike == similarity[text] and other < found[text]):
                    found[text], similarity[text] = other, alike


@njit(cache=True, nogil=True)
def root(parent: NDArray[np.int64], text: int) -> int:
    """The first text of a text's group. Shortens its path in parent (n,)."""
    while parent[text] != text:
        parent[text] = parent[parent[text]]
        text = parent[text]
    return text


@njit(cache=True, nogil=True)
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

    A text is held against the last `most` texts that stand for its bucket: in one of up to `most` texts every text
    does, in a larger one those that have `sure` equal slots with none of these. Pairs with `sure` slots become one
    group, and texts of a group are not held against each other.
    Reads members, bucket b's texts, rising, in members[begins[b]:begins[b + 1]], and signature (n, P). Writes parent
    (n,).
    """
    found, pairs = np.empty(1024, np.int64), 0
    kept = np.empty(most, np.int64)
    for bucket in range(len(begins) - 1):
        small, stand = begins[bucket + 1] - begins[bucket] <= most, 0
        for text in members[begins[bucket] : begins[bucket + 1]]:
            alone = True
            for other in kept[: min(stand, most)]:
                here, there = root(parent, text), root(parent, other)
                if here == there:
                    alone = False
                    continue
                equal = 0
                for slot in range(signature.shape[1]):
                    equal += signature[text, slot] == signature[other, slot]
                if equal < least:
                    continue
                if pairs == len(found):
                    found = np.concatenate((found, np.empty_like(found)))
                found[pairs] = other * len(parent) + text
                pairs += 1
                if equal >= sure:
                    parent[max(here, there)] = min(here, there)
                    alone = False
            if small or alone:
                kept[stand % most] = text
                stand += 1
    return found[:pairs]


@njit(cache=True, nogil=True)
def link(
    pairs: NDArray[np.int64],
    sets: NDArray[np.uint64],
    spans: NDArray[np.int64],
    least: float,
    parent: NDArray[np.int64],
    similarity: NDArray[np.float64],
) -> None:
    """Joins the groups of every pair that is as similar as `least`; similarity[i] = that of text i to the first text of
    its group.

    Reads pairs (Q, 2), and the texts' shingles, each text's rising and once, at spans (n, 2) of sets. Writes parent and
    similarity (n,).
    """
    for pair in pairs:
        here, there = root(parent, pair[0]), root(parent, pair[1])
        if here == there:
            continue
        (begin, end), (begin_other, end_other) = spans[pair[0]], spans[pair[1]]
        if jaccard(sets[begin:end], sets[begin_other:end_other]) >= least:
            parent[max(here, there)] = min(here, there)
    for text in range(len(parent)):
        first = root(parent, text)
        parent[text] = first
        (begin, end), (begin_other, end_other) = spans[first], spans[text]
        similarity[text] = jaccard(sets[begin:end], sets[begin_other:end_other])
