"""The slow, obvious twin of minhash.py."""

import re
import unicodedata
from itertools import combinations

_BITS = (1 << 64) - 1
# A word a character.
_UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u2e80-\u2fff\u3040-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_NO_LETTER = (
    "\\x00-/:-@\\[-`{-\\xbf\\u2000-\\u206f\\u2e00-\\u2e7f\\u3000-\\u303f\\ufe10-\\ufe6f"
    "\\uff00-\\uff0f\\uff1a-\\uff20\\uff3b-\\uff40\\uff5b-\\uff65"
)
_WORDS = re.compile(f"[{_UNSPACED}]|[^{_UNSPACED}{_NO_LETTER}]+")


def words(text: str) -> list[str]:
    small = "".join(one.lower() if one.isascii() else one for one in text)
    return _WORDS.findall(small)


def folded(text: str) -> str:
    """Without case and compatible forms."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def shingle_texts(text: str) -> set[tuple[str | bytes, ...]]:
    """Five words each, of a shorter text all."""
    text = text if text.isascii() else folded(text)
    of = words(text) or [text.encode()]
    return {tuple(of[at : at + 5]) for at in range(max(1, len(of) - 4))}


def similarity(one: str, other: str) -> float:
    """Jaccard's, of the shingles themselves."""
    here, there = shingle_texts(one), shingle_texts(other)
    return len(here & there) / len(here | there)


def groups(texts: list[str], threshold: float) -> list[int]:
    """Of each text the first one that near texts lead to from it."""
    first = list(range(len(texts)))
    for one, other in combinations(range(len(texts)), 2):
        if similarity(texts[one], texts[other]) >= threshold:
            joined = {first[one], first[other]}
            first = [min(joined) if of in joined else of for of in first]
    return first


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _BITS
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _BITS
    return value ^ value >> 33


def _word_hash(word: str | bytes) -> int:
    value = 0xCBF29CE484222325
    for one in word if isinstance(word, bytes) else map(ord, word):
        value = (value ^ one) * 0x100000001B3 & _BITS
    return _mixed(value)


def shingles(text: str) -> list[int]:
    """Hashes of the distinct shingles, rising."""
    found = set()
    for of in shingle_texts(text):
        value = len(of)
        for word in of:
            value = _mixed((value * 0x9E3779B97F4A7C15 + _word_hash(word)) & _BITS)
        found.add(value)
    return sorted(found)


def signature(text: str, slots: int) -> list[int]:
    factors = [_mixed((2 * slot + 1) * 0x9E3779B97F4A7C15 & _BITS) | 1 for slot in range(slots)]
    terms = [_mixed((2 * slot + 2) * 0x9E3779B97F4A7C15 & _BITS) for slot in range(slots)]
    return [
        min((factor * shingle + term & _BITS) >> 32 for shingle in shingles(text))
        for factor, term in zip(factors, terms, strict=True)
    ]
