"""Slow, obvious twin of `core.kernels.order_deal`: how far prefixes stray that end with a shard. For tests only."""

from collections.abc import Sequence

import numpy as np


def strayed(
    shard: Sequence[int],
    documents: Sequence[int],
    tokens: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray,
    document_weight: float,
    shards: int,
) -> float:
    """Sum over seams and trait values of the squared deviation, in tokens and in documents. shard[i] is where
    documents[i] went; codes (T, N) number all values, and one more value is everyone's. weights: by value."""
    values = codes.max(initial=-1) + 2
    found = 0.0
    for counted, factor in ((tokens, 1.0), (np.ones_like(tokens), document_weight)):
        held = np.zeros((values, shards))
        for at, document in zip(shard, documents, strict=True):
            for value in (*codes[:, document], values - 1):
                held[value, at] += counted[document]
        for last in range(shards):
            off = held[:, : last + 1].sum(axis=1) - (last + 1) / shards * held.sum(axis=1)
            found += factor * float(weights @ off**2)
    return found
