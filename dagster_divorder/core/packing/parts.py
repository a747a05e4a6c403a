"""Parts: contiguous parts of the pieces, packed one after another, so that no sequence holds two copies of a text.

Letters: P pieces, L tokens a sequence.
A text's copies are spaced evenly in the pieces' order. A part holds at most one of them, and about CELLS_APART parts
lie between two copies. A sequence's place in the plan is then the time of its texts. If pieces follow a schedule, each
of its windows is a part that no piece leaves, so a sequence holds pieces of one window. Copies are then spaced inside
their window, and consumed ones are ignored.
Guarantee: without copies there is one part a window, and the pieces keep their order. Copies less than MIN_DISTANCE
parts apart are marked to keep their evenly spaced places.
Cost: a sort of the pieces. Source: the subsets of unique documents in Don't Shuffle, Optimize.
Known weakness: a part offers fewer pieces, so best_fit pads slightly more, and related pieces are slightly less near.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.spread import cell_number, keep_times, spread_order
from dagster_divorder.core.packing.pieces import Ints

CELLS_APART = 7
"""Cells or parts between copies, if there is room. Evenly spaced copies may leave their times by about a quarter of the
even distance, one to three cells, which is enough to give each cell the mix. Worst window of 256 sequences of 8192
tokens, three seeds, all documents twice: 5 cells 1.3 to 2.3 points off, 7 cells 0.65 to 0.70, 14 cells 0.71 to 0.78.
Mixed with temperature 0.5: 0.9 to 1.1, 0.8 to 0.95, 0.9 to 1.1, since small cells hold the mix less well."""

MIN_PART = 64
"""Fewest sequences of a part. Small parts pad more and keep the mix less well; large parts make more texts keep their
places, which constrains all others."""


class PackingParts(NamedTuple):
    """order: int64 (P,), pieces with copies evenly spaced, or a slice of all. By place in that order: copies int64
    (P,), equal for equal pieces, None without copies; kept bool (P,), whether the piece keeps its place. bounds: int64
    (parts + 1,), where parts begin and end."""

    order: Ints | slice
    copies: Ints | None
    kept: NDArray[np.bool_]
    bounds: Ints


def in_parts(
    length: Ints, copies: Ints | None, consumed: Ints, sequence_length: int, windows: Ints | None = None
) -> PackingParts:
    """Divides pieces into parts. length: int64 (P,), tokens. copies: int64 (P,), equal for equal pieces. consumed:
    `copies` of the consumed pieces, in order. windows: int64 (W + 1,), bounds of windows; None: one window over all."""
    from scipy.sparse import csr_matrix

    if windows is not None and len(windows) > 2:
        return _in_windows(length, copies, sequence_length, windows)
    pieces, frozen = len(length), np.arange(len(consumed))
    whole = PackingParts(slice(None), None, np.zeros(pieces, bool), np.array([0, pieces]))
    if copies is None or not pieces:
        return whole
    both = np.concatenate([consumed, copies])
    _, first, inverse = np.unique(both, return_index=True, return_inverse=True)
    if len(first) == len(both):
        return whole
    # Numbered by first occurrence, because phases depend on the number.
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


def _in_windows(length: Ints, copies: Ints | None, sequence_length: int, windows: Ints) -> PackingParts:
    orders, kept, bounds = [], [], [windows[:1]]
    for first, last in pairwise(windows.tolist()):
        own = None if copies is None else copies[first:last]
        part = in_parts(length[first:last], own, np.zeros(0, np.int64), sequence_length)
        orders.append(np.arange(first, last)[part.order])
        kept.append(part.kept)
        bounds.append(first + part.bounds[1:])
    order = np.concatenate(orders)
    return PackingParts(
        order, None if copies is None else copies[order], np.concatenate(kept), np.concatenate(bounds)
    )
