"""Dense coordinates of packed sequences: what an order of sequences balances beside the trait rows.

Letters: S sequences, Q runs, n documents of a fragment, D dims, C components, M items.

A sequence's vector is the sum of its documents' directions times their tokens there, seen along C random axes: a cell
of k-means is no topic, and sequences of equal trait rows still differ in what they are about. Directions are rounded to
1 / UNIT and summed as whole numbers, so that no sum depends on how documents lie in fragments.
Guarantee: the same bytes for the same plan, vectors and axes. Cost: O(N D C + Q C) time, 8 S C bytes.
Source: random projections keep angles (Achlioptas 2003). Measured: docs/decisions/ordering-sequences.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.coordinates import VECTOR_SHARE, with_blocks
from dagster_divorder.core.packing.pieces import PackedSequences

if TYPE_CHECKING:
    from dagster_divorder.core.order.items import Items

UNIT = 1 << 16

DOCUMENTS_SHARE = 0.1
"""Variance of the number of documents a sequence over that of the heaviest trait."""


def random_axes(dims: int, components: int, seed: int) -> NDArray[np.float64]:
    """float64 (D, C): entries 1 or -1 at random; the axes themselves where C is not less than D."""
    if components >= dims:
        return np.eye(dims)
    return np.random.default_rng(seed).choice([-1.0, 1.0], (dims, components))


def add_directions(
    sums: NDArray[np.int64],
    sequence: NDArray[np.integer],
    length: NDArray[np.int64],
    row: NDArray[np.integer],
    directions: NDArray[np.float32],
) -> None:
    """Add runs of `length` tokens (Q,), of the documents whose directions are the given rows (Q,) of (n, C), to the
    sums int64 (S, C) of their sequences (Q,). NaN counts as nothing."""
    from dagster_divorder.core.kernels.packing import add_rows

    rounded = np.rint(np.nan_to_num(directions) * UNIT).astype(np.int32)
    add_rows(sums, sequence, length, row, rounded)


def with_coordinates(items: Items, packed: PackedSequences, vectors: NDArray[np.int64]) -> Items:
    """The sequences of a plan, items (S, J), with coordinates (S, C + 1): the number of documents, and the vectors,
    sums int64 (S, C) as of `add_directions`, each scaled to its share of the heaviest trait's variance."""
    documents = np.diff(packed.indptr)[:, np.newaxis]
    return with_blocks(items, ((documents, DOCUMENTS_SHARE), (vectors, VECTOR_SHARE)))
