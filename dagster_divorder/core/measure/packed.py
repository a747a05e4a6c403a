"""The measures of packed sequences in an order: a stream of runs of tokens, measured as documents are.

Letters: Q runs, S sequences, E epochs, N documents. A run's tokens have its document's trait values. Windows are of
tokens, so padding is in none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.measure.diversity import Diversity, measure
from dagster_divorder.core.measure.stream import indices_in
from dagster_divorder.core.order import Targets
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.rows import row_entries


def measure_packed(
    packed: PackedSequences,
    epochs: ArrayLike,
    traits: Mapping[str, ArrayLike],
    n_values: Mapping[str, int],
    *,
    batch: int,
    targets: Mapping[str, Targets] | None = None,
) -> Diversity:
    """Every measure of `packed` in the order of the first epoch; `windows` and `seam` run on through all epochs.

    epochs: int (E, S), place in an epoch -> sequence. traits, n_values, batch, targets: as for `measure`, by document.
    """
    rows = [runs_in_order(packed.indptr, order) for order in np.atleast_2d(np.asarray(epochs, np.int64))]
    (first, indptr), *others = rows
    measured = measure(
        first,
        packed.length,
        {trait: np.asarray(codes)[packed.document] for trait, codes in traits.items()},
        n_values,
        sequence_length=packed.sequence_length,
        batch=batch,
        sequences=indptr,
        next_epochs=[runs for runs, _ in others],
        targets=targets,
    )
    return replace(measured, documents=int(np.count_nonzero(np.bincount(packed.document))))


def runs_in_order(indptr: NDArray[np.int64], order: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(runs int64 (Q,) as the sequences of `order` hold them, int64 (S + 1,): where each sequence begins in that)."""
    return row_entries(indptr, indices_in(order, len(indptr) - 1, "sequence"))


@dataclass(frozen=True, eq=False)
class ReadRuns:
    """What is read in an order: runs of tokens, the document, first token in it and length of each, int64 (Q,). indptr:
    where each sequence begins among them, int64 (S + 1,); of whole documents each is one."""

    document: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    indptr: NDArray[np.int64]


def sequences_stream(packed: PackedSequences, order: ArrayLike) -> ReadRuns:
    """Packed sequences as a trainer reads them in an order, int (S,)."""
    runs, indptr = runs_in_order(packed.indptr, order)
    return ReadRuns(packed.document[runs], packed.start[runs], packed.length[runs], indptr)


def documents_stream(order: NDArray[np.int64], tokens: NDArray[np.int64]) -> ReadRuns:
    """Whole documents in an order, int (N,), of so many tokens each, int (N,)."""
    return ReadRuns(order, np.zeros_like(order), tokens[order], np.arange(len(order) + 1))
