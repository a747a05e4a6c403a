"""Selected rows of a CSR matrix."""

import numpy as np
from numpy.typing import NDArray


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
