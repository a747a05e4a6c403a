"""The hot loop of exports: runs of tokens copied into the order of training.

Letters: Q runs, T tokens. Twin: tests/twins/token_runs.py.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def copy_runs(
    ids: NDArray[np.unsignedinteger],
    source: NDArray[np.int64],
    length: NDArray[np.int64],
    own: NDArray[np.int64],
    end: int,
    out: NDArray[np.unsignedinteger],
) -> None:
    """out = the runs laid end to end: of run q ids[source[q]:][:own[q]], then `end` up to length[q] tokens.

    Reads ids (n,), and of each run where it begins, its tokens, and those of them that lie in ids, (Q,). Writes out
    (sum of length,), of the dtype of ids. O(T).
    """
    at = 0
    for q in range(source.shape[0]):
        first, held = source[q], own[q]
        for token in range(held):
            out[at + token] = ids[first + token]
        for token in range(held, length[q]):
            out[at + token] = end
        at += length[q]
