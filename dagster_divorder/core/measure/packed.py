"""The measures of packed sequences in an order, as a stream of runs of tokens.

Letters: Q runs, S sequences, E epochs, N documents. A run has its document's trait values. Windows contain no padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.measure.diversity import Diversity, measure
from dagster_divorder.core.measure.stream import indices_in
from dagster_divorder.core.packing import PackedSequences, Pieces
from dagster_divorder.core.rows import row_entries


def measure_packed(
    packed: PackedSequences,
    epochs: ArrayLike,
    traits: Mapping[str, ArrayLike],
    n_values: Mapping[str, int],
    *,
    batch: int,
    whole: bool = False,
    counted: ArrayLike | None = None,
    stretches: ArrayLike | None = None,
) -> Diversity:
    """Every measure of `packed` in the order of the first epoch; `windows` and `seam` continue through all epochs.

    epochs: int (E, S), place in an epoch -> sequence. traits, n_values, batch: as for `measure`, by document.
    whole: windows are whole sequences; for sequences with very different numbers of tokens. counted: int (Q,), tokens
    of each run that shares count, by default all; the others are ignored. It needs `whole`.
    stretches: int (T + 1,), the first sequences of stretches, and their number; None: one stretch.
    """
    tokens = packed.length if counted is None else np.asarray(counted, np.int64)
    rows = [runs_in_order(packed.indptr, order) for order in np.atleast_2d(np.asarray(epochs, np.int64))]
    (first, indptr), *others = rows
    bounds = None
    if whole:
        bounds = [np.concatenate([[0], np.cumsum(tokens[runs])])[edges] for runs, edges in rows]
    measured = measure(
        first,
        tokens,
        {trait: np.asarray(codes)[packed.document] for trait, codes in traits.items()},
        n_values,
        sequence_length=packed.sequence_length,
        batch=batch,
        sequences=indptr,
        next_epochs=[runs for runs, _ in others],
        bounds=bounds,
        stretch=None if stretches is None else stretch_of_runs(packed, np.asarray(stretches)),
    )
    return replace(measured, documents=int(np.count_nonzero(np.bincount(packed.document))))


def stretch_of_runs(packed: PackedSequences, stretches: NDArray[np.integer]) -> NDArray[np.int64]:
    """The stretch of each run, int64 (Q,). stretches: as in `measure_packed`."""
    return np.searchsorted(packed.indptr[stretches[1:-1]], np.arange(len(packed.document)), side="right")


def runs_in_order(indptr: NDArray[np.int64], order: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(runs in the order of their sequences, int64 (Q,); offsets of the sequences in them, int64 (S + 1,))."""
    return row_entries(indptr, indices_in(order, len(indptr) - 1, "sequence"))


@dataclass(frozen=True, eq=False)
class ReadRuns:
    """Runs of tokens in reading order: document, first token and length, int64 (Q,). indptr: int64 (S + 1,), offsets of
    sequences; a whole document is a sequence."""

    document: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    indptr: NDArray[np.int64]


RunCounter = Callable[[Pieces | PackedSequences | ReadRuns], NDArray[np.int64]]
"""Gives the tokens of each run that shares count, int64 (Q,)."""


def sequences_stream(packed: PackedSequences, order: ArrayLike) -> ReadRuns:
    """The runs of packed sequences in an order, int (S,)."""
    runs, indptr = runs_in_order(packed.indptr, order)
    return ReadRuns(packed.document[runs], packed.start[runs], packed.length[runs], indptr)


def documents_stream(order: NDArray[np.int64], tokens: NDArray[np.int64]) -> ReadRuns:
    """Whole documents in an order, int (N,). tokens: int (N,)."""
    return ReadRuns(order, np.zeros_like(order), tokens[order], np.arange(len(order) + 1))
