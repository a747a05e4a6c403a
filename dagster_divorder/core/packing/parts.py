"""Parts: contiguous parts of the pieces, packed one after another, so that no sequence holds copies and all have times.

Letters: P pieces, L tokens a sequence.
A text's copies stand evenly in the pieces' order; a part holds at most one of them, and CELLS_APART parts lie between
two copies. So sequences of one part hold no copies, and a sequence's place in the plan is the time of its texts.
Guarantee: without copies there is one part, and the pieces keep their order. Copies less than MIN_DISTANCE parts apart
are marked: they keep their places, evenly apart.
Cost: a sort of the pieces. Source: the subsets of Don't Shuffle, Optimize, each of unique documents.
Known weakness: a part has fewer pieces to choose among, so best_fit pads a little more, and related pieces are a
little less near.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.spread import cell_number, keep_times, spread_order
from dagster_divorder.core.packing.pieces import Ints

CELLS_APART = 7
"""Cells or parts between copies, where there is room for as many. Copies that are nearly evenly apart may leave their
times by about a quarter of the even distance, one to three cells: enough to give each cell the mix. Everything twice,
8192 tokens, worst window of 256 sequences of three seeds: 5 cells 1.3 to 2.3 points off, 7 0.65 to 0.70, 14 0.71 to
0.78; mixed by temperature 0.5 0.9 to 1.1, 0.8 to 0.95 and 0.9 to 1.1, since small cells hold the mix less well."""

MIN_PART = 64
"""Sequences a part at least: fewer hold the mix less well, and pad more. More sequences a part bring texts with many
copies to keep their places, in the way of all others."""


class PackingParts(NamedTuple):
    """order int64 (P,), or a slice of all: the pieces, copies evenly apart. Of the piece at each place of that order:
    copies int64 (P,), equal for equal ones, None where none are; kept bool (P,), whether it is to keep its place.
    bounds int64 (parts + 1,): the places between which a part lies."""

    order: Ints | slice
    copies: Ints | None
    kept: NDArray[np.bool_]
    bounds: Ints


def in_parts(length: Ints, copies: Ints | None, consumed: Ints, sequence_length: int) -> PackingParts:
    """length, copies: int64 (P,), tokens of each piece, and which pieces are equal. consumed: the copies of what stands
    before, in its order."""
    from scipy.sparse import csr_matrix

    pieces, frozen = len(length), np.arange(len(consumed))
    whole = PackingParts(slice(None), None, np.zeros(pieces, bool), np.array([0, pieces]))
    if copies is None or not pieces:
        return whole
    both = np.concatenate([consumed, copies])
    _, first, inverse = np.unique(both, return_index=True, return_inverse=True)
    if len(first) == len(both):
        return whole
    # Numbered by where they come first, for phases go by number.
    group = np.argsort(np.argsort(first))[inverse]
    alike = csr_matrix(
        (np.ones(len(both)), np.zeros(len(both), np.int32), np.arange(len(both) + 1)), shape=(len(both), 1)
    )
    order = spread_order(alike, [0], group, strategy="original", frozen=frozen)[len(frozen) :] - len(frozen)
    group = group[len(frozen) :][order]
    number = np.bincount(group)[group]
    before, tokens = np.cumsum(length[order]) - length[order], int(length.sum())
    sequences = -(-tokens // sequence_length)
    parts = cell_number(sequences, number, smallest=MIN_PART, apart=CELLS_APART)
    bounds = np.searchsorted(before, np.arange(parts + 1) * tokens // parts)
    return PackingParts(order, group, keep_times(sequences, number, parts), bounds)
