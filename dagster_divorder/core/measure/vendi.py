"""The Vendi score: the effective number of different vectors in a set, from the Gram matrix of unit vectors.

Letters: N vectors, D dims, n selected rows. Vectors have length 1; zero vectors add nothing.

Vendi(w) = exp(-sum_j l_j ln l_j), l the eigenvalues of the D x D matrix sum_i w_i z_i z_i', over its trace. They equal
the nonzero eigenvalues of the N x N kernel sqrt(w_i w_j) z_i'z_j, so no pairs are compared. The score is 1 if all
vectors are equal up to sign, and at most D. For gradients of a model's loss it is called G-Vendi.

Guarantee: the same bytes for the same rows in the same order and any number of threads, as float64 sums of blocks are
added in order.
Cost: N D^2 multiplications for the sums, D^3 for a score; 2 blocks of BLOCK numbers a thread, 8 D^2 bytes.
Sources: Friedman and Dieng 2022 (Vendi); Jung et al. 2025 (G-Vendi, and the Gram matrix in place of the kernel).
Known weakness: the score is at most the size of the set, so only sets of similar size compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_blas_thread

Result = TypeVar("Result")
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Vectors = NDArray[np.floating]

BLOCK = 1 << 21
"""Numbers in a block: 8 MB of float32."""
AHEAD = 4
"""Finished blocks for each thread that may wait for their turn."""
TINIEST = 1e-12
"""Eigenvalues below this share of their sum are rounding noise."""


def each_block(
    vectors: Vectors, rows: Rows, of_block: Callable[[slice, NDArray[np.float32]], Result]
) -> Iterator[Result]:
    """`of_block(part of rows, their vectors float32)` for blocks of rows int64 (n,) of vectors (N, D), in order.

    The vectors may be mapped from a file and are never in memory as a whole. Blocks run in parallel, each on one
    thread, so results do not depend on the number of threads.
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
    """Sum of x' x, float64 (D, D), over the weighted blocks x that `weigh` returns."""

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


def spectrum(gram: Floats) -> tuple[Floats, Floats]:
    """Eigenvalues float64 (D,) of a Gram matrix over its trace, and eigenvectors (D, D) in columns."""
    trace = float(np.trace(gram))
    # The last bits depend on the number of threads.
    with one_blas_thread():
        values, axes = np.linalg.eigh(gram / trace if trace > 0 else gram)
    return values, axes


def entropy(values: Floats) -> float:
    """ln Vendi of eigenvalues (D,) that sum to 1."""
    values = values[values > TINIEST]
    return max(0.0, float(-np.sum(values * np.log(values))))


def vendi(gram: Floats) -> float:
    """The Vendi score of a Gram matrix (D, D); 1 without vectors."""
    return float(np.exp(entropy(spectrum(gram)[0])))
