"""How hard a document is to predict: bits a token, by how often each token has followed the one before it.

Letters: N documents, V vocabulary, T tokens, H = 2^22 buckets of pairs.
A token costs -log2 p. p is the token's share among the tokens that followed its predecessor in other documents and
earlier in this one. A rare predecessor draws p towards the token's share of all tokens. A counted document leaves the
counts while its own tokens are valued; otherwise it would seem easier than an uncounted one.
Guarantee: a document's value depends only on its own tokens and the counts, not on how calls divide the documents.
Cost: O(T), 4 H + 8 V bytes.
Sources: Shannon 1948 (the measure); MacKay and Peto 1995 (the prior); Dawid 1984 (each token by those before it);
Knuth, volume 3, 6.4 (the hash).
Known weakness: pairs that share a bucket share their count. docs/decisions/difficulty.md compares the ranking with a
trained model's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.vectors.pool import flat

SHIFT = np.uint64(64 - 22)

PRIOR = 64.0
"""Occurrences of a predecessor at which its own counts weigh as much as the shares of all tokens."""


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts of tokens, int64 (V,), and of neighbouring pairs by bucket, int32 (H,)."""

    tokens: NDArray[np.int64]
    pairs: NDArray[np.int32]

    @classmethod
    def none(cls, vocabulary: int) -> Counts:
        """Counts before any document."""
        return cls(np.zeros(vocabulary, np.int64), np.zeros(1 << 64 - int(SHIFT), np.int32))

    def add(self, ids: NDArray[np.integer], lengths: NDArray[np.int64], counted: NDArray[np.int64]) -> None:
        """Counts the first `counted` (N,) tokens of each document. ids: (T,), flat. lengths: (N,). Raises as
        `bits_a_token` does."""
        from dagster_divorder.core.kernels.difficulty import count

        tokens, starts = flat(ids, lengths, len(self.tokens))
        for document in np.flatnonzero(counted).tolist():
            first = starts[document]
            count(tokens, first, first + counted[document], SHIFT, 1, self.tokens, self.pairs)


def bits_a_token(
    ids: NDArray[np.integer],
    lengths: NDArray[np.int64],
    counted: NDArray[np.int64],
    counts: Counts,
) -> NDArray[np.float64]:
    """Mean bits a token of each document, float64 (N,); NaN for an empty document.

    ids (T,) flat, lengths (N,). counted (N,), at most lengths: how many first tokens of a document the counts include.
    The call changes `counts` while it works and restores them, so calls must not overlap.

    Raises:
        InputError: lengths do not add up to T, or an id lies outside the vocabulary of the counts.
    """
    from dagster_divorder.core.kernels.difficulty import mean_bits

    tokens, starts = flat(ids, lengths, len(counts.tokens))
    bits = np.empty(len(lengths))
    mean_bits(tokens, starts, counted, counts.tokens, counts.pairs, PRIOR, SHIFT, bits)
    return bits
