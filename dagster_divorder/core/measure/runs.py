"""Runs of tokens in reading order.

Letters: Q runs, S sequences, N documents. A run has its document's trait values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.packing import PackedSequences, Pieces
from dagster_divorder.core.rows import row_entries


def runs_in_order(indptr: NDArray[np.int64], order: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(runs in the order of their sequences, int64 (Q,); offsets of the sequences in them, int64 (S + 1,))."""
    return row_entries(indptr, np.asarray(order, np.int64))


@dataclass(frozen=True, eq=False)
class ReadRuns:
    """Runs of tokens in reading order: document, first token and length, int64 (Q,). indptr: int64 (S + 1,), offsets of
    sequences."""

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
