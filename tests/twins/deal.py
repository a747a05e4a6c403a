"""Slow, obvious twin of `core.kernels.order_deal`: how far prefixes stray that end with a part. For tests only."""

from collections.abc import Sequence

import numpy as np


def strayed(
    part: Sequence[int],
    documents: Sequence[int],
    tokens: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray,
    document_weight: float,
    reached: np.ndarray,
) -> float:
    """Sum over seams and trait values of the squared deviation, in tokens and in documents. part[i] is where
    documents[i] went; codes (T, N) number all values, and one more value is everyone's. weights: by value. reached
    (N, P): the share of a document that is to lie in each part or an earlier one."""
    values, found = codes.max(initial=-1) + 2, 0.0
    for counted, factor in ((tokens, 1.0), (np.ones_like(tokens), document_weight)):
        off = np.zeros((values, reached.shape[1]))
        for at, document in zip(part, documents, strict=True):
            is_there = np.arange(reached.shape[1]) >= at
            for value in (*codes[:, document], values - 1):
                off[value] += counted[document] * (is_there - reached[document])
        found += factor * float(weights @ (off**2).sum(axis=1))
    return found
