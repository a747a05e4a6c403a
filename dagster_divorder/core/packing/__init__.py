"""Documents packed into sequences of L tokens: a plan of document, start and length, not the tokens themselves.

Letters: P pieces, Q runs, S sequences, L tokens a sequence, N documents.

With every method each token of the pieces is in exactly one sequence. Pieces without tokens are in none; the plan
counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from dagster_divorder.core.packing import cluster_packed
from dagster_divorder.core.packing.coordinates import sequence_counts, with_all_tokens
from dagster_divorder.core.packing.methods import best_fit, concat, none
from dagster_divorder.core.packing.pieces import (
    PackedSequences,
    PackingProblem,
    Pieces,
    Vectors,
    cut,
    join,
    remaining,
)
from dagster_divorder.core.packing.report import packing_report

__all__ = [
    "FILLED",
    "METHODS",
    "PackedSequences",
    "Pieces",
    "cut",
    "join",
    "pack",
    "packing_report",
    "remaining",
    "sequence_counts",
    "with_all_tokens",
]

METHODS: dict[str, Callable[[PackingProblem], PackedSequences]] = {
    "concat": concat,
    "best_fit": best_fit,
    "cluster_packed": cluster_packed.pack,
    "none": none,
}
FILLED = frozenset({"concat", "cluster_packed"})
"""Methods that pad only the last sequence."""


def pack(
    pieces: Pieces,
    *,
    method: str = "concat",
    sequence_length: int,
    seed: int = 0,
    labels: ArrayLike | None = None,
    vectors: Vectors | None = None,
    copies: ArrayLike | None = None,
) -> PackedSequences:
    """A plan of sequences that hold every token of the pieces once.

    method: a key of METHODS. sequence_length: tokens a sequence. seed: >= 0, for the shuffle of `best_fit`.
    labels: int (P,) >= 0, the cluster of each piece; vectors: a function of piece numbers int64 (n,) that returns their
        vectors float32 (n, D). Only `cluster_packed` uses both; it calls the function for a cluster at a time.
    copies: int (P,), equal for pieces of equal content, for `best_fit`: they go to different sequences. None: no piece
        is a copy.

    The same arguments give the same bytes.

    Raises:
        InputError: the vectors are not finite.
    """
    # Without empty pieces, the pieces' arrays are used as they are.
    kept = slice(None) if pieces.length.all() else np.flatnonzero(pieces.length)
    with_tokens = pieces.take(kept)
    problem = PackingProblem(
        pieces=with_tokens,
        sequence_length=sequence_length,
        seed=seed,
        labels=None if labels is None else np.asarray(labels)[kept],
        vectors=None if vectors is None else lambda numbers: vectors(np.arange(len(pieces))[kept][numbers]),
        copies=None if copies is None else np.unique(np.asarray(copies)[kept], return_inverse=True)[1],
    )
    return replace(METHODS[method](problem), without_tokens=len(pieces) - len(with_tokens))
