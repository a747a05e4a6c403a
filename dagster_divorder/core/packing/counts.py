"""Trait rows of packed sequences; an order of sequences balances them.

Letters: S sequences, Q runs, N documents, J trait values over all traits.
Guarantee: exact; a row sums to the sequence's counted tokens in each group; columns rise within a row. A value whose
documents have no counted token in a sequence has a stored 0 there.
Cost: O(Q log of the runs a sequence) a trait; 16 bytes a run and trait. Libraries: docs/decisions/libraries.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.packing.pieces import PackedSequences

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from dagster_divorder.core.order.items import Items

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
