"""Slow and obvious twins of `core.kernels.stationarity`, which the tests compare with it."""

import numpy as np
from numpy.typing import NDArray


def mix_distances(
    counts: NDArray[np.int64], whole: NDArray[np.float64], order: NDArray[np.int64], edges: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Total variation of each group of neighbours from `whole`; counts dense (S, F)."""
    out = np.zeros(len(edges) - 1)
    for group in range(len(out)):
        sums = counts[order[edges[group] : edges[group + 1]]].sum(axis=0)
        if sums.sum():
            out[group] = np.abs(sums / sums.sum() - whole).sum() / 2
    return out


def bucket(token: int, bits: int) -> int:
    """The highest bits of the token's number times 2**64 over the golden ratio, without what overflows."""
    return (token * 0x9E3779B97F4A7C15 % 2**64) >> (64 - bits)
