"""Slow, obvious twins of `core.measure` and its kernels, from every single token. For tests only; O(tokens) memory."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def token_windows(tokens: Ints, codes: Ints, window: int) -> list[Ints]:
    """The trait value of every token, cut into windows; the last may be partial."""
    stream = np.repeat(codes, tokens)
    return [stream[start : start + window] for start in range(0, len(stream), window)]


def token_gaps(sequences: Sequence[Ints], stretch: Sequence[int], n_values: int) -> list[Floats]:
    """By how much every token of each sequence differs from the mix of its stretch, (tokens, J) each; windows add up.
    sequences: the trait value of each token."""
    ones = np.eye(n_values)
    mixes = {
        number: np.concatenate(
            [ones[tokens] for tokens, of in zip(sequences, stretch, strict=True) if of == number]
        )
        for number in set(stretch)
    }
    return [
        ones[tokens] - (mixes[of].mean(axis=0) if len(mixes[of]) else 0.0)
        for tokens, of in zip(sequences, stretch, strict=True)
    ]


def bucket(token: int, bits: int) -> int:
    """The highest bits of the token's number times 2**64 over the golden ratio, without what overflows."""
    return (token * 0x9E3779B97F4A7C15 % 2**64) >> (64 - bits)


def vendi(vectors: Floats, weights: Floats) -> float:
    """The Vendi score of vectors (N, D) and weights (N,) by the eigenvalues of the N x N kernel, N small."""
    roots = np.sqrt(weights / weights.sum())
    values = np.linalg.eigvalsh(np.outer(roots, roots) * (vectors.astype(np.float64) @ vectors.T))
    values = values[values > 1e-12]
    return float(np.exp(-(values * np.log(values)).sum()))
