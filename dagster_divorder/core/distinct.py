"""The distinct values of an array, and the number of each value among equal ones.

Cost: one sort. If asked for values alone, `numpy.unique` hashes numbers since NumPy 2.3, which takes 40 to 60 times as
long: 0.37 s for 440,000 ids of 64 bits, 5.9 s for 4,000,000 (AMD EPYC).
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def distinct_values(values: NDArray[Number]) -> NDArray[Number]:
    """The distinct values of an array of any shape, (n,), rising."""
    ordered = np.sort(values, axis=None)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def copy_number(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """0 for the first of equal values, 1 for the second, ...; int64 (N,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    number = np.empty(len(values), np.int64)
    number[order] = np.arange(len(values)) - first.repeat(np.diff(first, append=len(values)))
    return number
