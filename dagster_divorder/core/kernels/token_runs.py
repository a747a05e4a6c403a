"""The hot loop of exports: runs of tokens copied into the order of training.

Letters: Q runs, T tokens. Twin: `runs_of` of tests/write/exports/made.py.
"""

from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel


@intrinsic
def _copy(context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copies bytes from one address to another; a loop over tokens takes twice the time."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source, count = arguments
        to, origin = (builder.inttoptr(address, cgutils.voidptr_t) for address in (target, source))
        cgutils.raw_memcpy(builder, to, origin, count, 1)
        return context.get_dummy_value()

    return types.none(types.intp, types.intp, types.intp), build


@kernel
def copy_runs(
    source: NDArray[np.int64],
    length: NDArray[np.int64],
    own: NDArray[np.int64],
    end: int,
    out: NDArray[np.unsignedinteger],
) -> None:
    """out = the runs laid end to end: run q is own[q] ids from the address source[q] on, then `end` up to length[q].

    Reads each run's address, tokens and present tokens, (Q,) each, and ids of the dtype of out at these addresses.
    Writes out (sum of length,). O(T). Addresses are not checked.
    """
    at, size = 0, out.itemsize
    for q in range(source.shape[0]):
        present = own[q]
        _copy(out.ctypes.data + at * size, source[q], present * size)  # type: ignore[call-arg]
        for token in range(present, length[q]):
            out[at + token] = end
        at += length[q]
