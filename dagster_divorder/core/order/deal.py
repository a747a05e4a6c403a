"""Deals documents to parts with the corpus's own mix, so that parts can be ordered apart and follow each other.

Letters: N documents, T traits, J trait values, P parts.

One pass, longest document first, equally long ones in random order. Each document goes to the part that keeps prefixes
up to the seams nearest to the corpus's mix (`core.kernels.order_deal`). The many short documents make up for the
deviations of the long ones. Copies of a text go to parts at even distances.
Guarantee: every document is in one part. The same arguments give the same bytes.
Cost: a sort of the documents and O(N T P) time; 28 bytes a document while they are sorted, 6 + 4 T while they are
dealt, 2 afterwards, and 16 J P bytes.
Source: the objective of Don't Shuffle, Optimize, at the seams only; online vector balancing, as in GraB.
Known weakness: features that are no traits, such as words, vary between parts as between random samples. Copies in
neighbouring parts may stand near the seam between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.traits import Traits

DOCUMENT_WEIGHT = 0.01
"""Weight of a trait in documents over its weight in tokens; smaller than in `core.order.items`, because a sequence's
documents are chosen inside a part."""
RARITY = 0.25
"""A value's weight falls with its number of documents to this power: few documents can make up for one with a rare
value."""


def deal(
    traits: Traits,
    weights: Mapping[str, float],
    shares: Sequence[float] | NDArray[Any],
    *,
    kind: NDArray[np.integer] | None = None,
    seed: int = 0,
    copies: NDArray[np.int64] | None = None,
) -> NDArray[np.int16]:
    """The part of every document, int16 (N,) in [0, P).

    weights: trait -> number above 0, for the traits to balance. shares: float (P,), the parts' shares of the counted
    tokens, or (C, P), a row for each class of documents; 0 for a part that a class does not reach. kind: int (N,), the
    class of each document. copies: int64 (N,) >= 0, equal for copies of a text; for parts that all classes reach.
    """
    from dagster_divorder.core.kernels.order_deal import deal_to_parts

    tokens = traits.counted
    queue = _longest_first(tokens, copies, seed)
    sizes = [traits.sizes()[trait] for trait in weights]
    codes = np.zeros((len(weights), len(tokens)), np.int32)
    for row, (trait, first) in enumerate(zip(weights, np.cumsum([0, *sizes[:-1]]), strict=True)):
        codes[row] = traits.codes[trait] + np.int32(first)
    unit = max(1.0, float(tokens.mean())) if len(tokens) else 1.0
    values = np.repeat([*weights.values(), max(weights.values(), default=1.0)], [*sizes, 1])
    holders = np.append(np.bincount(codes.ravel(), minlength=sum(sizes)), len(tokens))
    of_classes = np.atleast_2d(np.asarray(shares, np.float64))
    return deal_to_parts(
        queue,
        queue if copies is None else copies[queue],
        tokens,
        codes,
        values / np.maximum(holders, 1) ** RARITY,
        DOCUMENT_WEIGHT * unit * unit,
        np.zeros(len(tokens), np.int32) if kind is None else kind.astype(np.int32),
        np.cumsum(of_classes, axis=1) / of_classes.sum(axis=1, keepdims=True),
    )


def _longest_first(
    tokens: NDArray[np.int64], copies: NDArray[np.int64] | None, seed: int
) -> NDArray[np.uint32]:
    """The documents by falling length, uint32 (N,): equally long ones in random order, copies of a text together."""
    number = np.arange(len(tokens) if copies is None else copies.max(initial=-1) + 1, dtype=np.uint32)
    np.random.default_rng(seed).shuffle(number)
    if copies is None:
        keys = tokens[number]
    else:
        number = np.argsort(number[copies], kind="stable").astype(np.uint32)
        # The rest of a text that is partly read is a copy of it, and counts as long.
        longest = np.zeros(copies.max(initial=-1) + 1, np.int64)
        np.maximum.at(longest, copies, tokens)
        keys = longest[copies[number]]
    return number[np.argsort(-keys, kind="stable")]
