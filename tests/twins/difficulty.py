"""Slow, obvious twins of `difficulty.py`. For tests only."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

MULTIPLIER = 0x9E3779B97F4A7C15


def buckets(tokens: Sequence[int], shift: int) -> list[int]:
    """Where each two neighbours are counted."""
    return [((a << 32) + b) * MULTIPLIER % 2**64 >> shift for a, b in pairwise(tokens)]


def mean_bits(
    documents: Sequence[Sequence[int]], counted: Sequence[int], vocabulary: int, prior: float, shift: int
) -> list[float]:
    """By the tokens that are counted of the other documents, the first counted[d] of each, and those read before."""
    bits = []
    for d, tokens in enumerate(documents):
        others = [one[:n] for i, (one, n) in enumerate(zip(documents, counted, strict=True)) if i != d]
        single = Counter(token for one in others for token in one)
        double = Counter(place for one in others for place in buckets(one, shift))
        cost = []
        for at, token in enumerate(tokens):
            p = (single[token] + 0.5) / (single.total() + vocabulary / 2)
            if at:
                (place,) = buckets(tokens[at - 1 : at + 1], shift)
                p = min(1.0, (double[place] + prior * p) / (single[tokens[at - 1]] + prior))
                double[place] += 1
            single[token] += 1
            cost.append(-math.log2(p))
        bits.append(sum(cost) / len(cost) if cost else math.nan)
    return bits
