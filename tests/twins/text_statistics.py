"""Slow, obvious twins of `text_statistics.py`. For tests only."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence

SHORTEST, LONGEST = 4, 258


def slot(four: bytes) -> int:
    return int.from_bytes(four, "little") * 0x9E3779B97F4A7C15 % 2**64 >> 48


def entropy_bits(counts: Counter[int]) -> float:
    total = counts.total()
    return sum(-count * math.log2(count / total) for count in counts.values())


def block_bits(block: bytes) -> float:
    """The latest place of each slot is looked for among all places before."""
    symbols: Counter[int] = Counter()
    distances: Counter[int] = Counter()
    lower, at = 0, 0
    while at < len(block):
        here = block[at : at + SHORTEST]
        before = [
            place
            for place in range(at)
            if len(here) == SHORTEST and slot(block[place : place + SHORTEST]) == slot(here)
        ]
        size = 0
        if before:
            while size < LONGEST and at + size < len(block) and block[before[-1] + size] == block[at + size]:
                size += 1
        if size >= SHORTEST:
            size_bits = (size - SHORTEST + 1).bit_length() - 1
            distance_bits = (at - before[-1]).bit_length() - 1
            symbols[256 + size_bits] += 1
            distances[distance_bits] += 1
            lower += size_bits + distance_bits
            at += size
        else:
            symbols[block[at]] += 1
            at += 1
    return lower + entropy_bits(symbols) + entropy_bits(distances)


def compressed_bits(text: bytes, block: int) -> float:
    blocks = max(1, math.floor(len(text) / block + 0.5))
    edges = [len(text) * part // blocks for part in range(blocks + 1)]
    return sum(block_bits(text[edges[part] : edges[part + 1]]) for part in range(blocks))


def moving_ratio(words: Sequence[Hashable], window: int) -> float:
    stretches = [words[first : first + window] for first in range(len(words) - window + 1)]
    if not stretches:
        return math.nan
    return sum(len(set(stretch)) / window for stretch in stretches) / len(stretches)
