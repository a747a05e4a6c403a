"""Deals documents to shards with the corpus's own mix, so that shards can be ordered separately and concatenated.

Letters: N documents, R of them dealt, T traits, J trait values, P shards.

One pass, longest document first, equally long ones in random order. Each document goes to the shard that keeps prefixes
up to the seams nearest to the corpus's mix. The measure is a sum of squares over all seams, in tokens and, with
DOCUMENT_WEIGHT, in documents (`core.kernels.order_deal`). The many short documents make up for the deviations of the
long ones. Consumed documents precede the first shard, which makes up for their deviation. Copies of a text go to shards
at even distances, except a few of the shortest that find no room.
Guarantee: every document is in one shard; no shard has more than R / P, rounded up. The same arguments give the same
bytes.
Cost: a sort of the documents and O(R T P) time; 20 bytes a document while they are sorted, 6 + 4 T while
they are dealt, 2 afterwards, and 16 J P bytes.
Source: the objective of Don't Shuffle, Optimize, at the seams only; online vector balancing, as in GraB. Measurements,
also of walks of a tree of signed sums: docs/decisions/ordering-shards.md.
Known weakness: features that are no traits, such as words, vary between shards as between random samples. Copies in
neighbouring shards may stand near the seam between them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.traits import Traits

DOCUMENT_WEIGHT = 0.01
"""Weight of a trait in documents over its weight in tokens; smaller than in `core.order.items`, because a sequence's
documents are chosen inside a shard. Mean prefix deviation of sequences, 400,000 documents in 8 shards: 0 gives 20,100
tokens, 0.01 20,400, 1 26,000; shards' documents differ by 34, 21 and 2."""

RARITY = 0.25
"""A value's weight falls with its number of documents to this power: few documents can make up for one with a rare
value. Mean deviation at the seams, tokens, with 0, 0.25 and 0.5: 1.6 million documents of 1000 clusters in 32 shards
27,000, 26,000, 26,100; 400,000 in 8 18,700, 18,000, 19,300; of 30 clusters 7,100, 5,300, 4,700."""

MOST_SHARDS = 4096
"""Most shards; each costs 16 bytes a trait value, and time for every document."""

LONGEST = (1 << 31) - 1
"""Longer documents are dealt as if they had this length."""


def shard_of_each(
    traits: Traits,
    weights: Mapping[str, float],
    shards: int,
    *,
    seed: int = 0,
    copies: NDArray[np.int64] | None = None,
    frozen: NDArray[np.int64] | None = None,
) -> NDArray[np.int16]:
    """The shard of every document, int16 (N,) in [0, shards).

    weights: trait -> number above 0, for the traits to balance. shards: at most MOST_SHARDS. copies: int64 (N,) >= 0,
    equal for copies of a text. frozen: int64 (F,), documents before all others; they belong to shard 0 and take no
    room.
    """
    from dagster_divorder.core.kernels.order_deal import deal_to_shards, seam_products

    consumed = np.zeros(0, np.int64) if frozen is None else frozen
    documents = len(traits.tokens)
    queue = _longest_first(traits.tokens, copies, seed)
    if len(consumed):
        queue = queue[~np.isin(queue, consumed)]
    sizes = [traits.sizes()[trait] for trait in weights]
    codes = np.stack([traits.codes[trait] for trait in weights])
    codes += np.cumsum([0, *sizes[:-1]], dtype=np.int32)[:, np.newaxis]
    unit = max(1.0, float(traits.tokens.mean())) if documents else 1.0
    # The consumed documents' excess over the mix counts as the first shard's.
    begun = seam_products(shards, 0)
    excess, excess_documents = (
        _beyond_the_mix(codes, sum(sizes), consumed, counted)[:, np.newaxis] * begun
        for counted in (traits.tokens, np.ones(documents, np.int8))
    )
    values = np.repeat([*weights.values(), max(weights.values())], [*sizes, 1])
    holders = np.append(np.bincount(codes.ravel(), minlength=sum(sizes)), documents)
    return deal_to_shards(
        queue,
        queue if copies is None else copies[queue],
        traits.tokens,
        codes,
        values / np.maximum(holders, 1) ** RARITY,
        DOCUMENT_WEIGHT * unit * unit,
        excess,
        excess_documents,
        np.full(shards, -(-len(queue) // shards), np.int64),
    )


def _longest_first(
    tokens: NDArray[np.int64], copies: NDArray[np.int64] | None, seed: int
) -> NDArray[np.uint32]:
    """The documents by falling length, uint32 (N,): equally long ones in random order, copies of a text together."""
    number = np.arange(len(tokens) if copies is None else copies.max(initial=-1) + 1, dtype=np.uint32)
    np.random.default_rng(seed).shuffle(number)
    if copies is not None:
        number = np.argsort(number[copies], kind="stable").astype(np.uint32)
    # Sorting one combined key in place takes a third of the memory of sorting indices by length.
    if copies is None:
        keys = tokens[number]
    else:
        # Near copies count as long as the longest of them.
        longest = np.zeros(copies.max(initial=-1) + 1, np.int64)
        np.maximum.at(longest, copies, tokens)
        keys = longest[copies[number]]
    np.minimum(keys, LONGEST, out=keys)
    np.subtract(LONGEST, keys, out=keys)
    keys <<= 32
    keys |= np.arange(len(keys), dtype=np.uint32)
    keys.sort()
    keys &= (1 << 32) - 1
    return number[keys]


def _beyond_the_mix(
    codes: NDArray[np.int32], values: int, documents: NDArray[np.int64], counted: NDArray[np.signedinteger]
) -> NDArray[np.float64]:
    """The documents' excess of each value, and of all, over their part of the whole's mix, float64 (J + 1,).

    counted: int64 (N,), tokens or ones.
    """
    beyond = np.zeros(values + 1)
    if len(documents):
        part = counted[documents].sum() / max(1, counted.sum(dtype=np.int64))
        for row in codes:
            beyond[:-1] += np.bincount(row[documents], counted[documents], values)
            beyond[:-1] -= part * np.bincount(row, counted, values)
    return beyond
