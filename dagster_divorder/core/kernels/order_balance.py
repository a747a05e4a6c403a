"""Signed balancing on sparse rows, for `balanced`.

Letters: M items, J trait values, G groups. The row of an item has c_j for trait value j; l_g is its sum in group g,
tau_j the share of j in its group, w_g the group's weight. The centred row is a_j = c_j - l_g tau_j. In the norm that
weighs group g by w_g, for a vector D in the same space, with E_g = sum_{j in g} D_j tau_j,

    <D, a> = sum_g w_g (sum_{j in g} D_j c_j - l_g E_g) = sum over the row's entries of w_g c_j (D_j - E_g),

so an inner product with a centred row costs as many steps as the row has stored entries. Deviations come from raw sums,
T_j of the values and S_g of the group totals: D_j = T_j - tau_j S_g, E_g = P_g - S_g Q_g with P_g = sum T_j tau_j and
Q_g = sum tau_j^2. No difference is accumulated, so no rounding error drifts. Dense coordinates, signed and centred by
the caller, are further coordinates of every row.
Arithmetic is float64, in one thread: the same bytes on every run.
"""

import numpy as np

from dagster_divorder.core.kernels import kernel
from dagster_divorder.core.kernels.order_greedy import ROUNDING, Floats, Ints, SparseItems

# Rows fetched together.
FETCHED = 64


@kernel
def sign_pass(queue: Ints, rows: SparseItems, shares: Floats, out: Ints) -> int:
    """Reorders the n items `queue` into `out`, int64 (n,) both. With D the signed sum of the rows so far, row a gets +
    if <D, a> <= 0 within rounding, else -.

    + rows fill the result from the front, - rows from the back; returns the number of + rows. shares: tau, float64
    (J,). O(entries of the items + J).
    """
    indptr, indices, data, groups, weights, dense = rows
    q = np.zeros(weights.shape[0])
    for j in range(shares.shape[0]):
        q[groups[j]] += shares[j] * shares[j]
    t_sum = np.zeros(shares.shape[0])
    s_sum = np.zeros(q.shape[0])
    p_sum = np.zeros(q.shape[0])
    dims = dense.shape[1]
    dense_sum = np.zeros(dims)
    largest = 0.0
    front, back = 0, queue.shape[0] - 1
    # The rows of the next items lie side by side: fetched together, they wait for memory once.
    starts = np.empty(FETCHED + 1, np.int64)
    dense_of = np.empty((FETCHED, dims))
    value_of = np.empty(0, np.int32)
    group_of = np.empty(0, np.int32)
    value = np.empty(0)
    for first in range(0, queue.shape[0], FETCHED):
        fetched = min(FETCHED, queue.shape[0] - first)
        entries = 0
        for i in range(fetched):
            item = queue[first + i]
            starts[i] = indptr[item]
            entries += indptr[item + 1] - starts[i]
            for d in range(dims):
                dense_of[i, d] = dense[item, d]
        if value_of.shape[0] < entries:
            value_of = np.empty(2 * entries, np.int32)
            group_of = np.empty(2 * entries, np.int32)
            value = np.empty(2 * entries)
        at = 0
        for i in range(fetched):
            begin, end = starts[i], indptr[queue[first + i] + 1]
            starts[i] = at
            for k in range(begin, end):
                value_of[at] = indices[k]
                group_of[at] = groups[indices[k]]
                value[at] = data[k]
                at += 1
        starts[fetched] = at

        for i in range(fetched):
            item = queue[first + i]
            product = 0.0
            size = 0.0
            for d in range(dims):
                product += dense_sum[d] * dense_of[i, d]
                size += abs(dense_of[i, d])
            for k in range(starts[i], starts[i + 1]):
                j = value_of[k]
                g = group_of[k]
                weighed = weights[g] * value[k]
                product += weighed * (t_sum[j] - s_sum[g] * shares[j] - (p_sum[g] - s_sum[g] * q[g]))
                size += weighed
            plus = product <= ROUNDING * size * largest
            # Both ends are written and one is kept; a branch on the sign would be mispredicted half the time.
            out[front] = item if plus else out[front]
            out[back] = out[back] if plus else item
            front += plus
            back -= not plus
            sign = 1.0 if plus else -1.0
            for d in range(dims):
                dense_sum[d] += sign * dense_of[i, d]
                largest = max(largest, abs(dense_sum[d]))
            for k in range(starts[i], starts[i + 1]):
                j = value_of[k]
                g = group_of[k]
                change = sign * value[k]
                t_sum[j] += change
                s_sum[g] += change
                p_sum[g] += change * shares[j]
                largest = max(largest, abs(t_sum[j]))
    return front
