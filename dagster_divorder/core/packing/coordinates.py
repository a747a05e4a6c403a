"""Dense coordinates of packed sequences: what an order of sequences balances beside the trait rows.

Letters: S sequences, Q runs, n documents of a fragment, D dims, C components, M items.

A sequence's vector is the sum of its documents' directions times their tokens there, seen along C random axes: a cell
of k-means is no topic, and sequences of equal trait rows still differ in what they are about. Directions are rounded to
1 / UNIT and summed as whole numbers, so that no sum depends on how documents lie in fragments.
Guarantee: the same bytes for the same plan, vectors and axes. Cost: O(N D C + Q C) time, 8 S C bytes.
Source: random projections keep angles (Achlioptas 2003). Measured: docs/decisions/ordering-sequences.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.packing.pieces import PackedSequences

if TYPE_CHECKING:
    from dagster_divorder.core.items import Items

UNIT = 1 << 16

VECTOR_SHARE = 0.3
"""Variance of the vectors, all dims together, over that of the heaviest trait: vectors are nearer to the whole's as it
rises, and traits further."""

DOCUMENTS_SHARE = 0.1
"""The same for the number of documents a sequence."""


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
    variance = _heaviest_variance(items)
    documents = np.diff(packed.indptr)[:, np.newaxis]
    blocks = ((documents, DOCUMENTS_SHARE), (vectors, VECTOR_SHARE))
    coordinates = np.concatenate([_scaled(block, share * variance) for block, share in blocks], axis=1)
    return replace(items, coordinates=coordinates)


def _scaled(block: NDArray[np.int64], variance: float) -> NDArray[np.float32]:
    own = float(block.var(axis=0, dtype=np.float64).sum())
    return block.astype(np.float32) * np.float32((variance / own) ** 0.5 if own else 0.0)


def _heaviest_variance(items: Items) -> float:
    """Largest over the groups of weight times variance of the rows, all values together."""
    counts, rows = items.counts, max(1, items.counts.shape[0])
    values = counts.data.astype(np.float64)
    size = len(items.groups)
    square = np.bincount(counts.indices, weights=values * values, minlength=size) / rows
    mean = np.bincount(counts.indices, weights=values, minlength=size) / rows
    return float((np.bincount(items.groups, weights=square - mean * mean) * items.weights).max(initial=0.0))
