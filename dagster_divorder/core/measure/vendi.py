"""The effective number of different vectors in a set: its Vendi score, from the Gram matrix of unit vectors.

Letters: N vectors, D dims, n of their rows, G groups (sources, clusters, ...). Vectors are rows of length 1, or zero:
such a row counts for nothing.

Vendi(w) = exp(-sum_j l_j ln l_j), l the eigenvalues of the D x D matrix sum_i w_i z_i z_i', over its trace. They are
the nonzero ones of the N x N kernel sqrt(w_i w_j) z_i'z_j, so that a set is never compared pair by pair: 1 where all
vectors are alike up to sign, D at most. Of gradients of a model's loss it is called G-Vendi.

Guarantee: the same bytes for the same rows in the same order, whatever the number of threads: sums are of float64, of
blocks in order. Sums of groups add up: what is appended is added to them, and the scores of all of them, of each and
of all but one come from the sums alone.
Cost: N D^2 multiplications for the sums, D^3 for a score; 2 blocks of BLOCK numbers a thread, 8 D^2 bytes a group.
Sources: Friedman and Dieng 2022 (Vendi); Jung et al. 2025 (G-Vendi, and the Gram matrix in place of the kernel).
Known weakness: a set has at most as many different things as members, so that only sets of like size compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_blas_thread

Result = TypeVar("Result")
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Vectors = NDArray[np.floating]

BLOCK = 1 << 21
"""Numbers of a block: 8 MB of float32."""
AHEAD = 4
"""Blocks a thread whose results wait to be taken in order."""

WINDOWS = 16
TINIEST = 1e-12
"""Least share of an eigenvalue in their sum; smaller ones are rounding."""


def each_block(
    vectors: Vectors, rows: Rows, of_block: Callable[[slice, NDArray[np.float32]], Result]
) -> Iterator[Result]:
    """`of_block(part of rows, their vectors float32)` for blocks of rows int64 (n,) of vectors (N, D), in order.

    The vectors may be mapped from a file, and are never held whole. Blocks run side by side, each on one thread, so
    that nothing depends on how many there are.
    """
    from joblib import cpu_count

    step = max(1, BLOCK // vectors.shape[1])

    def run(first: int) -> Result:
        part = slice(first, first + step)
        return of_block(part, vectors[rows[part]].astype(np.float32, copy=False))

    with one_blas_thread(), ThreadPoolExecutor(cpu_count()) as threads:
        stride = step * AHEAD * cpu_count()
        for first in range(0, len(rows), stride):
            yield from threads.map(run, range(first, min(first + stride, len(rows)), step))


def sum_products(
    vectors: Vectors, rows: Rows, weigh: Callable[[slice, NDArray[np.float32]], NDArray[np.float32]]
) -> Floats:
    """x' x, float64 (D, D), of the rows x that `weigh` makes of each block."""

    def product(part: slice, block: NDArray[np.float32]) -> NDArray[np.float32]:
        block = weigh(part, block)
        return block.T @ block

    total = np.zeros((vectors.shape[1],) * 2)
    for one in each_block(vectors, rows, product):
        total += one
    return total


def gram(vectors: Vectors, rows: Rows, weights: Floats | None = None) -> Floats:
    """sum_i w_i z_i z_i' of rows int64 (n,) of vectors (N, D), float64 (D, D). weights: (n,), by default all 1."""
    if weights is None:
        return sum_products(vectors, rows, lambda part, block: block)
    roots = np.sqrt(weights, dtype=np.float32)[:, None]
    return sum_products(vectors, rows, lambda part, block: block * roots[part])


def group_grams(vectors: Vectors, rows: Rows, codes: NDArray[np.integer], groups: int) -> Floats:
    """`gram` of each group, float64 (G, D, D). codes: int (n,), the group of each row."""
    return np.stack([gram(vectors, rows[codes == group]) for group in range(groups)])


def spectrum(gram: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues float64 (D,) of a Gram matrix over its trace, and eigenvectors (D, D) in columns."""
    trace = float(np.trace(gram))
    # Several threads give other last bits.
    with one_blas_thread():
        values, axes = np.linalg.eigh(gram / trace if trace > 0 else gram)
    return values, axes


def entropy(values: Floats) -> float:
    """ln Vendi of eigenvalues (D,) that sum to 1."""
    values = values[values > TINIEST]
    return max(0.0, float(-np.sum(values * np.log(values))))


def vendi(gram: Floats) -> float:
    """The Vendi score of a Gram matrix (D, D); 1 of no vectors."""
    return float(np.exp(entropy(spectrum(gram)[0])))


def window_scores(vectors: Vectors, rows: Rows, tokens: NDArray[np.integer], size: int) -> list[float]:
    """Vendi of WINDOWS windows of `size` tokens, evenly spaced, each document by its tokens in it; of all windows where
    these are fewer, or of what there is. rows: int64 (Q,), of the documents that follow one another; tokens: int (Q,),
    of each."""
    ends = np.cumsum(tokens, dtype=np.int64)
    size = min(size, int(ends[-1]))
    count = int(ends[-1]) // size
    scores = []
    for window in np.unique(np.linspace(0, count - 1, WINDOWS).astype(int)).tolist():
        low, high = window * size, (window + 1) * size
        part = slice(int(np.searchsorted(ends, low, "right")), int(np.searchsorted(ends, high, "left")) + 1)
        inside = np.minimum(ends[part], high) - np.maximum(ends[part] - tokens[part], low)
        scores.append(vendi(gram(vectors, rows[part], inside.astype(np.float64))))
    return scores


@dataclass(frozen=True, eq=False)
class GroupDiversity:
    """Vendi of the `whole`; of each group, float64 (G,), and of all `without` it, float64 (G,)."""

    whole: float
    groups: Floats
    without: Floats


def group_diversity(grams: Floats) -> GroupDiversity:
    """From the sums of the groups alone, float64 (G, D, D)."""
    total = grams.sum(axis=0)
    return GroupDiversity(
        vendi(total),
        np.array([vendi(one) for one in grams]),
        np.array([vendi(np.delete(grams, group, axis=0).sum(axis=0)) for group in range(len(grams))]),
    )
