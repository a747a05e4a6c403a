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
from dagster_divorder.core.kernels.order_greedy import ROUNDING, Floats, Ints
from dagster_divorder.core.rows import SparseItems


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
    for item in queue:
        product = 0.0
        size = 0.0
        for d in range(dims):
            product += dense_sum[d] * dense[item, d]
            size += abs(dense[item, d])
        for k in range(indptr[item], indptr[item + 1]):
            j = indices[k]
            g = groups[j]
            weighed = weights[g] * data[k]
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
            dense_sum[d] += sign * dense[item, d]
            largest = max(largest, abs(dense_sum[d]))
        for k in range(indptr[item], indptr[item + 1]):
            j = indices[k]
            g = groups[j]
            change = sign * data[k]
            t_sum[j] += change
            s_sum[g] += change
            p_sum[g] += change * shares[j]
            largest = max(largest, abs(t_sum[j]))
    return front
