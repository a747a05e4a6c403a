"""Moves items between the cells of an order until every prefix that ends at the end of a cell is near its wanted
totals.

Letters: M items, J trait values, D coordinates, C cells.

E_jq is the excess of value j over its wanted total in the cells up to q, and F = sum_q sum_j w_j E_jq^2. A coordinate
counts like a value of weight 1. If item c moves from cell o to a later cell p, it leaves E_q for o <= q < p, so F
changes by sum_{o <= q < p} (|c|^2 - 2 <E_q, c>); if p is earlier, F changes by sum_{p <= q < o} (|c|^2 + 2 <E_q, c>).
"""

import numpy as np

from dagster_divorder.core.kernels import kernel
from dagster_divorder.core.kernels.order_greedy import Floats, Ints, SparseItems


@kernel
def move_to_mix(
    queue: Ints,
    cell: Ints,
    ranges: Ints,
    rows: SparseItems,
    beyond: Floats,
    dense_beyond: Floats,
    rounds: int,
) -> None:
    """Moves each item of `queue` in turn to the cell that gives the least F, `rounds` times.

    Updates cell int64 (M,), each item's cell, and E: beyond float64 (J, C) and dense_beyond float64 (D, C). ranges
    int64 (M, 2): the first cell that an item may be in, and the cell after the last.
    O(rounds (entries + M D) C) time, with C the cells in range.
    """
    indptr, indices, data, groups, weights, dense = rows
    product = np.empty(beyond.shape[1])
    for _ in range(rounds):
        for item in queue:
            first, last, own = ranges[item, 0], ranges[item, 1] - 1, cell[item]
            if first >= last:
                continue
            product[first:last] = 0.0
            square = 0.0
            for k in range(indptr[item], indptr[item + 1]):
                value, more = float(data[k]), beyond[indices[k]]
                weighed = weights[groups[indices[k]]] * value
                square += weighed * value
                for q in range(first, last):
                    product[q] += weighed * more[q]
            for d in range(dense.shape[1]):
                value, more = float(dense[item, d]), dense_beyond[d]
                square += value * value
                for q in range(first, last):
                    product[q] += value * more[q]
            best, least, change = own, 0.0, 0.0
            for q in range(own, last):
                change += square - 2.0 * product[q]
                if change < least:
                    best, least = q + 1, change
            change = 0.0
            for q in range(own - 1, first - 1, -1):
                change += square + 2.0 * product[q]
                if change < least:
                    best, least = q, change
            if best == own:
                continue
            cell[item] = best
            sign = 1.0 if best < own else -1.0
            low, high = min(best, own), max(best, own)
            for k in range(indptr[item], indptr[item + 1]):
                for q in range(low, high):
                    beyond[indices[k], q] += sign * data[k]
            for d in range(dense.shape[1]):
                for q in range(low, high):
                    dense_beyond[d, q] += sign * dense[item, d]
