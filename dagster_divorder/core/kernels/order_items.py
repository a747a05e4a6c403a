"""Loops over the sparse rows: labels and sizes, totals, and dealing items to the segments of a path."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel
from dagster_divorder.core.kernels.order_greedy import ROUNDING, Codes, Floats, Ints, SparseItems


@kernel
def largest_and_sum(rows: SparseItems, sums: NDArray[Any]) -> Codes:
    """out[s] = argmax over the columns of group 0 stored in row s (the first of equal ones); sums[s] = their sum.

    Writes `sums` (M,) and the result int32 (M,). A row without group 0 gets the group's first column. O(nnz + J).
    """
    indptr, indices, data, groups, _, _ = rows
    first = 0
    while groups[first] != 0:
        first += 1
    items = indptr.shape[0] - 1
    out = np.full(items, first, np.int32)
    for s in range(items):
        largest = data.dtype.type(0)
        any_entry = False
        for k in range(indptr[s], indptr[s + 1]):
            if groups[indices[k]] == 0:
                sums[s] += data[k]
                if not any_entry or data[k] > largest:
                    largest = data[k]
                    out[s] = indices[k]
                    any_entry = True
    return out


@kernel
def norms_and_sums(rows: SparseItems, norms: Floats) -> Floats:
    """Adds the L2 norm of row s in group 0 to norms[s]; returns the sum of every column, float64 (J,).

    norms: float64 (M,), or (1,) for the sum of all norms. O(nnz + J), no scratch.
    """
    indptr, indices, data, groups, _, _ = rows
    sums = np.zeros(groups.shape[0])
    summed = norms.shape[0] == 1
    for s in range(indptr.shape[0] - 1):
        square = 0.0
        for k in range(indptr[s], indptr[s + 1]):
            value = np.float64(data[k])
            sums[indices[k]] += value
            if groups[indices[k]] == 0:
                square += value * value
        norms[0 if summed else s] += np.sqrt(square)
    return sums


@kernel
def rows_of(items: Ints, rows: SparseItems) -> SparseItems:
    """The rows of the items, int64 (n,), one after another. O(their entries + n D)."""
    indptr, indices, data, groups, weights, dense = rows
    ends = np.zeros(items.shape[0] + 1, np.int64)
    for s in range(items.shape[0]):
        ends[s + 1] = ends[s] + indptr[items[s] + 1] - indptr[items[s]]
    own_indices = np.empty(ends[-1], indices.dtype)
    own_data = np.empty(ends[-1], data.dtype)
    own_dense = np.empty((items.shape[0], dense.shape[1]), dense.dtype)
    for s in range(items.shape[0]):
        first = indptr[items[s]] - ends[s]
        for k in range(ends[s], ends[s + 1]):
            own_indices[k] = indices[first + k]
            own_data[k] = data[first + k]
        for d in range(dense.shape[1]):
            own_dense[s, d] = dense[items[s], d]
    return SparseItems(ends, own_indices, own_data, groups, weights, own_dense)


@kernel
def with_entry(rows: SparseItems, values: Codes, amount: int) -> tuple[Ints, Codes, NDArray[Any]]:
    """indptr, indices and data of the rows, each with one more entry at its end: `amount` of values[s], int32 (M,).
    O(nnz + M)."""
    indptr, indices, data, _, _, _ = rows
    items = indptr.shape[0] - 1
    ends = np.zeros(items + 1, np.int64)
    wider_indices = np.empty(indices.shape[0] + items, indices.dtype)
    wider_data = np.empty(indices.shape[0] + items, data.dtype)
    for s in range(items):
        for k in range(indptr[s], indptr[s + 1]):
            wider_indices[k + s] = indices[k]
            wider_data[k + s] = data[k]
        ends[s + 1] = indptr[s + 1] + s + 1
        wider_indices[ends[s + 1] - 1] = values[s]
        wider_data[ends[s + 1] - 1] = amount
    return ends, wider_indices, wider_data


@kernel
def row_norms(rows: SparseItems, shares: Floats) -> Floats:
    """L2 norms of the whole rows, float64 (M,), with their dense coordinates: weighed, and centred by the values'
    shares of their groups, float64 (J,). O(nnz + J + M (G + D))."""
    indptr, indices, data, groups, weights, dense = rows
    square_of = np.zeros(weights.shape[0])
    for j in range(groups.shape[0]):
        square_of[groups[j]] += shares[j] * shares[j]
    length = np.zeros(weights.shape[0])
    out = np.empty(indptr.shape[0] - 1)
    for s in range(out.shape[0]):
        square = 0.0
        length[:] = 0.0
        for k in range(indptr[s], indptr[s + 1]):
            length[groups[indices[k]]] += data[k]
        for k in range(indptr[s], indptr[s + 1]):
            g = groups[indices[k]]
            value = np.float64(data[k])
            square += weights[g] * value * (value - 2.0 * length[g] * shares[indices[k]])
        size = 0.0
        for g in range(weights.shape[0]):
            square += weights[g] * length[g] * length[g] * square_of[g]
            size += weights[g] * length[g] * length[g]
        for d in range(dense.shape[1]):
            square += np.float64(dense[s, d]) * np.float64(dense[s, d])
        # The norm of a row equal to the mix is only rounding error.
        out[s] = np.sqrt(square) if square > ROUNDING * size else 0.0
    return out
