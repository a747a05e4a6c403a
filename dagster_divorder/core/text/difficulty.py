"""How hard a document is to predict: bits a token, by how often each token has followed the one before it.

Letters: N documents, V vocabulary, T tokens, H = 2^22 buckets of pairs.
A token costs -log2 of its share among what followed the token before, drawn towards its share of all tokens where the
one before is rare; in other documents, and earlier in this one. A document is not told by itself: if it was counted, it
is taken out of the counts first, else it would seem easier than one that was not, by more than documents differ.
Guarantee: a document's value depends on its own tokens and the counts alone; the same bytes for any division into
calls. Cost: O(T), 4 H + 8 V bytes. Sources: Shannon 1948 (the measure); MacKay and Peto 1995 (the prior); Dawid 1984
(each token by those before it); Knuth, volume 3, 6.4 (the hash). Known weakness: a pair that shares a bucket seems as
frequent as all pairs there. How well it ranks what a trained model finds hard: docs/decisions/difficulty.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.vectors.pool import flat

SHIFT = np.uint64(64 - 22)

PRIOR = 64.0
"""Occurrences of a token from which on what follows it counts for more than the shares of all tokens."""


@dataclass(frozen=True, eq=False)
class Counts:
    """How often tokens, int64 (V,), and pairs of neighbours, int32 (H,) by bucket, occur in some documents."""

    tokens: NDArray[np.int64]
    pairs: NDArray[np.int32]

    @classmethod
    def none(cls, vocabulary: int) -> Counts:
        """Of no document."""
        return cls(np.zeros(vocabulary, np.int64), np.zeros(1 << 64 - int(SHIFT), np.int32))

    def add(self, ids: NDArray[np.integer], lengths: NDArray[np.int64], counted: NDArray[np.int64]) -> None:
        """Count the first counted (N,) tokens of documents; ids (T,) flat, lengths (N,). InputError as in
        `bits_a_token`."""
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
    """Mean bits of each document's tokens, float64 (N,); NaN where it has none.

    ids (T,) flat, lengths (N,); counted (N,), at most lengths: how many of a document's first tokens are in the counts.
    The counts change meanwhile, and are as they were after it: one call at a time.

    Raises:
        InputError: lengths do not add up to T, or an id lies outside the vocabulary of the counts.
    """
    from dagster_divorder.core.kernels.difficulty import mean_bits

    tokens, starts = flat(ids, lengths, len(counts.tokens))
    bits = np.empty(len(lengths))
    mean_bits(tokens, starts, counted, counts.tokens, counts.pairs, PRIOR, SHIFT, bits)
    return bits
