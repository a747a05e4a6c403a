"""Walks over the sparse rows: labels and sizes, totals, and dealing items to the segments of a path."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dagster_divorder.core.kernels.order_greedy import ROUNDING


@njit(cache=True, nogil=True)
def largest_and_sum(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[Any],
    wanted: NDArray[np.bool_],
    sums: NDArray[Any],
) -> NDArray[np.int32]:
    """out[s] = argmax over the wanted columns stored in row s (the first of equal ones); sums[s] = their sum.

    Reads all, writes `sums` (M,) and the result int32 (M,). A row with none gets the first wanted column. O(nnz + J).
    """
    first = 0
    while not wanted[first]:
        first += 1
    items = indptr.shape[0] - 1
    out = np.full(items, first, np.int32)
    for s in range(items):
        largest = data.dtype.type(0)
        found = False
        for k in range(indptr[s], indptr[s + 1]):
            if wanted[indices[k]]:
                sums[s] += data[k]
                if not found or data[k] > largest:
                    largest = data[k]
                    out[s] = indices[k]
                    found = True
    return out


@njit(cache=True, nogil=True)
def norms_and_sums(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[Any],
    wanted: NDArray[np.bool_],
    norms: NDArray[np.float64],
) -> NDArray[np.float64]:
    """norms[s] = L2 norm of the wanted columns of row s, where `norms` is float64 (M,), or (1,) for their sum over all
    rows; it is added to. Returns the sum of every column, float64 (J,). O(nnz + J), no scratch."""
    sums = np.zeros(wanted.shape[0])
    summed = norms.shape[0] == 1
    for s in range(indptr.shape[0] - 1):
        square = 0.0
        for k in range(indptr[s], indptr[s + 1]):
            value = np.float64(data[k])
            sums[indices[k]] += value
            if wanted[indices[k]]:
                square += value * value
        norms[0 if summed else s] += np.sqrt(square)
    return sums


@njit(cache=True, nogil=True)
def deal(
    stream: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[Any],
    groups: NDArray[np.int32],
    weights: NDArray[np.float64],
    dense: NDArray[np.float32],
    wanted: NDArray[np.float64],
    ranges: NDArray[np.int64],
    rounds: int,
) -> NDArray[np.int32]:
    """The segment of each item of `stream`, int32 (n,): items are dealt so that all segments fill evenly.

    wanted: float64 (J, P), what segment p is to hold of trait value j. With f_g the share of group g dealt so far, the
    item goes where it deviates least, argmin_p sum_j w_g c_j (T_jp - f_g wanted_jp), the first of equal ones. Dense
    coordinates z are to sum to nothing in every segment, and add sum_d z_d Z_dp.
    ranges: int64 (n, 2), of each place of the stream: the first segment allowed, and the one after the last.
    rounds: after the first, each item that is not allowed everywhere is taken out and dealt again.
    O(rounds (entries + D) P) time, O((J + D) P) scratch.
    """
    segments = wanted.shape[1]
    total = np.zeros(weights.shape[0])
    for j in range(groups.shape[0]):
        total[groups[j]] += wanted[j].sum()
    dealt = np.zeros(weights.shape[0])
    held = np.zeros_like(wanted)
    dense_held = np.zeros((dense.shape[1], segments))
    score = np.empty(segments)
    out = np.empty(stream.shape[0], np.int32)
    for step in range(rounds * stream.shape[0]):
        i = step % stream.shape[0]
        item, first, end = stream[i], ranges[i, 0], ranges[i, 1]
        if step == i:
            for k in range(indptr[item], indptr[item + 1]):
                dealt[groups[indices[k]]] += data[k]
        else:
            for d in range(dense.shape[1]):
                dense_held[d, out[i]] -= dense[item, d]
            for k in range(indptr[item], indptr[item + 1]):
                held[indices[k], out[i]] -= data[k]
        score[first:end] = 0.0
        for k in range(indptr[item], indptr[item + 1]):
            j = indices[k]
            g = groups[j]
            share = dealt[g] / total[g] if total[g] > 0.0 else 0.0
            factor = weights[g] * data[k]
            has, wants = held[j], wanted[j]
            for p in range(first, end):
                score[p] += factor * (has[p] - share * wants[p])
        for d in range(dense.shape[1]):
            value = np.float64(dense[item, d])
            in_segment = dense_held[d]
            for p in range(first, end):
                score[p] += value * in_segment[p]
        best = first + np.argmin(score[first:end])
        out[i] = best
        for d in range(dense.shape[1]):
            dense_held[d, best] += dense[item, d]
        for k in range(indptr[item], indptr[item + 1]):
            held[indices[k], best] += data[k]
    return out


@njit(cache=True, nogil=True)
def row_norms(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    data: NDArray[Any],
    groups: NDArray[np.int32],
    weights: NDArray[np.float64],
    shares: NDArray[np.float64],
    dense: NDArray[np.float32],
) -> NDArray[np.float64]:
    """L2 norm of every whole row, centred by the shares float64 (J,) of the values in their groups and weighed, with
    its dense coordinates; float64 (M,). O(nnz + J + M (G + D))."""
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
        # What is left of a row that is the mix itself is rounding, and no norm.
        out[s] = np.sqrt(square) if square > ROUNDING * size else 0.0
    return out
