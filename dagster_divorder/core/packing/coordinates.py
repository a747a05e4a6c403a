"""Packed sequences as items to order: their trait rows, and dense coordinates that an order balances beside these.

Letters: S sequences, Q runs, N documents, J trait values over all traits, n documents of a fragment, D dims, C
components, M items.

A sequence's vector is the sum of its documents' directions, weighted by their tokens in it, on C random axes, which
keep angles (Achlioptas 2003). It separates sequences with equal trait rows, since documents of one cluster still differ
in content. Directions are rounded to 1 / UNIT and summed as whole numbers, so no sum depends on how documents are
divided into fragments. Cost: O(N D C + Q C) time, 8 S C bytes; 16 bytes a run and trait for the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.order.items import Items
from dagster_divorder.core.packing.pieces import PackedSequences

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

UNIT = 1 << 16

VECTOR_SHARE = 0.3
"""Variance of the vectors, all dims together, over the heaviest trait's. A larger share keeps vectors nearer to the
whole's, and traits less near."""

DOCUMENTS_SHARE = 0.1
"""Variance of `documents a sequence` over that of the heaviest trait."""


def random_axes(dims: int, components: int, seed: int) -> NDArray[np.float64]:
    """float64 (D, C): entries 1 or -1 at random; the identity if C >= D."""
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
    """Adds to `sums`, int64 (S, C), the direction of each run's document times the run's tokens.

    directions: (n, C). By run, (Q,): row of its document, sequence, length in tokens. NaN adds nothing.
    """
    from scipy.sparse import csr_matrix

    rounded = np.rint(np.nan_to_num(directions) * UNIT).astype(np.int64)
    held, place = np.unique(sequence, return_inverse=True)
    weights = csr_matrix((length, (place, row)), shape=(len(held), len(rounded)))
    sums[held] += np.asarray(weights @ rounded)


def with_coordinates(items: Items, packed: PackedSequences, vectors: NDArray[np.int64]) -> Items:
    """Items (S, J) of a plan's sequences with coordinates (S, C + 1): the number of documents, and the vectors int64
    (S, C) of `add_directions`, each scaled to its share of the heaviest trait's variance."""
    documents = np.diff(packed.indptr)[:, np.newaxis]
    return with_blocks(items, ((documents, DOCUMENTS_SHARE), (vectors, VECTOR_SHARE)))


def with_blocks(items: Items, blocks: Iterable[tuple[NDArray[Any], float]]) -> Items:
    """Items (M, J) with coordinates: blocks (M, D) side by side. Each block is scaled so that its variance is its share
    of the heaviest trait's, all values together."""
    counts, rows = items.counts, max(1, items.counts.shape[0])
    values = counts.data.astype(np.float64)
    square, mean = (
        np.bincount(counts.indices, weights=of, minlength=len(items.groups)) / rows
        for of in (values * values, values)
    )
    variance = float(
        (np.bincount(items.groups, weights=square - mean * mean) * items.weights).max(initial=0.0)
    )
    scaled = []
    for block, share in blocks:
        own = float(block.var(axis=0, dtype=np.float64).sum()) if len(block) else 0.0
        scale = (share * variance / own) ** 0.5 if own else 0.0
        scaled.append(block.astype(np.float32) * np.float32(scale))
    return replace(items, coordinates=np.concatenate(scaled, axis=1))


LEAST_SCALE = 1e-3
"""Keeps the weight of every trait above the least that an order accepts."""


def sequence_counts(
    packed: PackedSequences,
    codes: Mapping[str, ArrayLike],
    n_values: Mapping[str, int],
    counted: ArrayLike | None = None,
) -> tuple[csr_matrix, NDArray[np.int32]]:
    """(tokens of each trait value in each sequence, CSR (S, J); the trait of each column, int32 (J,)).

    codes: trait -> int (N,), the value of each document, in [0, n_values[trait]). Columns have the order of `codes`.
    counted: int (Q,), tokens of each run that count; by default all.
    Entries are int32, or int64 if a sequence may have more than 2**31 - 1 tokens.
    """
    from scipy.sparse import csr_matrix, hstack

    small = packed.sequence_length <= np.iinfo(np.int32).max
    tokens = np.asarray(packed.length if counted is None else counted)
    length: NDArray[Any] = tokens.astype(np.int32 if small else np.int64)
    blocks = []
    for name in codes:
        column = np.asarray(codes[name], np.int32)
        # The runs of a sequence are the entries of its row; scipy sums the entries of one value.
        block = csr_matrix(
            (length.copy(), column[packed.document], packed.indptr), shape=(len(packed), n_values[name])
        )
        block.sum_duplicates()
        blocks.append(block)
    sizes = [n_values[name] for name in codes]
    return hstack(blocks, format="csr"), np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)


def with_all_tokens(
    items: Items, packed: PackedSequences, codes: Mapping[str, ArrayLike], n_values: Mapping[str, int]
) -> Items:
    """Adds groups to items that count only some of their tokens: the same traits in all tokens, which decide what a
    batch costs and what its prompts are about.

    items: from `sequence_counts` with `counted`, one group for each of `codes`. A trait weighs as much in all tokens as
    in counted ones, but at least LEAST_SCALE of its weight.
    """
    from scipy.sparse import hstack

    if int(items.counts.sum()) == len(codes) * int(packed.length.sum()):
        return items
    whole, groups = sequence_counts(packed, codes, n_values)
    scale = max(LEAST_SCALE, (int(items.counts.sum()) / max(1, int(whole.sum()))) ** 2)
    return replace(
        items,
        counts=hstack([items.counts, whole], format="csr"),
        groups=np.concatenate([items.groups, groups + np.int32(len(codes))]),
        weights=np.concatenate([items.weights, scale * items.weights]),
    )
