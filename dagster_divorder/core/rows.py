"""Selected rows of a CSR matrix, and items to order as rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class SparseItems(NamedTuple):
    """M items to order: item s has `data[k]` of trait value `indices[k]` for indptr[s] <= k < indptr[s+1].

    indptr int64 (M+1,); indices int32 (nnz,) in [0, J), rising inside a row; data int32, int64 or float64 (nnz,),
    >= 0; groups int32 (J,) in [0, G), none empty; weights float64 (G,) > 0. A stored zero is kept: it gives an item
    without tokens its trait value.
    dense float32 (M, D): signed coordinates whose prefix sums should stay near zero.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[Any]
    groups: NDArray[np.int32]
    weights: NDArray[np.float64]
    dense: NDArray[np.float32]

    def take(self, items: NDArray[np.int64]) -> SparseItems:
        """The rows of the items, int64 (n,), one after another."""
        entries, indptr = row_entries(self.indptr, items)
        indices, data = self.indices[entries], self.data[entries]
        return self._replace(indptr=indptr, indices=indices, data=data, dense=self.dense[items])


def row_entries(
    indptr: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(indices of the rows' stored entries, row after row, int64 (n,); the offset of each row in them, int64 (R + 1,)).

    indptr: int64 (M + 1,). rows: int64 (R,) in [0, M), in any order, repeats allowed. O(R + n).
    """
    widths = np.diff(indptr)[rows]
    begins = np.concatenate([[0], np.cumsum(widths)])
    entries = (indptr[rows] - begins[:-1]).repeat(widths)
    entries += np.arange(begins[-1])
    return entries, begins
