"""Hot loops of `core.text.difficulty`: count pairs of neighbours, and value a document's tokens by the counts.

Letters: N documents, V vocabulary, T tokens, H buckets of pairs, a power of two.
The top bits of (2^32 a + b) MULTIPLIER mod 2^64 are the bucket of a pair (a, b): Fibonacci hashing (Knuth, volume 3,
6.4). Guarantee: a document's value is summed from its own tokens, in their order. The GIL is released. Twins:
tests/twins/difficulty.py.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Tokens = NDArray[np.uint32]
Counts = NDArray[np.int64]
Pairs = NDArray[np.int32]
Doubles = NDArray[np.float64]

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
HALF = np.uint64(32)

AT_ONCE = 8
"""Factors to one logarithm, which takes most of the time. No factor is below 2^-100, and float64 holds 2^-800."""


@kernel
def count(
    ids: Tokens, first: int, last: int, shift: np.uint64, by: int, tokens: Counts, pairs: Pairs
) -> None:
    """Adds `by` to tokens (V,) for each of ids[first:last], and to pairs (H,) for each pair of neighbours there."""
    for k in range(first, last):
        tokens[ids[k]] += by
        if k > first:
            key = np.uint64(ids[k - 1]) << HALF | np.uint64(ids[k])
            pairs[(key * MULTIPLIER) >> shift] += by


@kernel
def mean_bits(
    ids: Tokens,
    starts: Counts,
    counted: Counts,
    tokens: Counts,
    pairs: Pairs,
    prior: float,
    shift: np.uint64,
    bits: Doubles,
) -> None:
    """bits[d] = mean over the tokens b of document d of -log2 p(b | a), with a the token before; NaN without tokens.

    p(b | a) = min(1, (n_ab + prior p(b)) / (n_a + prior)) and p(b) = (n_b + 1/2) / (n + V/2); the first token has p(b).
    The counts n cover other documents and the tokens before b in this one. The counts given include the document's own
    first counted[d] tokens.
    Reads ids (T,), starts (N + 1,), counted (N,); changes tokens (V,) and pairs (H,) and restores them; writes bits
    (N,). O(T).
    """
    every = tokens.sum() + len(tokens) / 2
    for d in range(len(bits)):
        first, last = starts[d], starts[d + 1]
        count(ids, first, first + counted[d], shift, -1, tokens, pairs)
        rest = every - counted[d]
        total = 0.0
        product = 1.0
        for k in range(first, last):
            b = ids[k]
            share = (tokens[b] + 0.5) / (rest + (k - first))
            if k > first:
                a = ids[k - 1]
                pair = ((np.uint64(a) << HALF | np.uint64(b)) * MULTIPLIER) >> shift
                product *= min(1.0, (pairs[pair] + prior * share) / (tokens[a] + prior))
                pairs[pair] += 1
            else:
                product *= share
            tokens[b] += 1
            if (k - first) % AT_ONCE == AT_ONCE - 1:
                total -= np.log2(product)
                product = 1.0
        bits[d] = (total - np.log2(product)) / (last - first) if last > first else np.nan
        # The loop has added the whole document.
        count(ids, first, last, shift, -1, tokens, pairs)
        count(ids, first, first + counted[d], shift, 1, tokens, pairs)
