"""Signed balancing and the candidate pool, on sparse rows, for `balanced`.

Letters: M items, J trait values, G groups, C candidates. The row of an item has c_j for trait value j; l_g is its
sum in group g, tau_j the share of j in its group, g(j). Values carry their groups' weights already. Centred, the
row is a_j = c_j - l_g tau_j, and for a vector D in the same space, with E_g = sum_{j in g} D_j tau_j,

    <D, a> = sum_j D_j c_j - sum_g l_g E_g = sum over the row's entries of c_j (D_j - E_g(j)),

so an inner product with a centred row costs the row's stored entries. Deviations are taken from raw sums, T_j of
the values and S_g of the group totals: D_j = T_j - tau_j S_g, E_g = P_g - S_g Q_g with P_g = sum T_j tau_j and
Q_g = sum tau_j^2. No difference is accumulated, so none drifts. `pace` is one more coordinate of every centred row.

Arguments: items int64 (M,), an order; indptr int64 (M+1,); indices int32 and values float32 (nnz,); groups int32
(J,), g(j); shares float64 (J,), tau; pace float32 (M,), summing to about 0. All are only read, except where said.
Arithmetic is float64, in one thread: the same bytes on every run.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Values = NDArray[np.float32]
Floats = NDArray[np.float64]

# Differences below this share of the terms they come from are rounding: a tie.
ROUNDING = 1e-13


@njit(cache=True, nogil=True)
def scale_and_share(indices: Codes, values: Values, groups: Codes, scale: Values) -> Floats:
    """tau float64 (J,): each trait value's share of its group's sum; zeros in a group whose sum is 0. O(nnz + J).

    Writes `values`: first multiplies those of group g by scale[g], float32 (G,), in place for the memory's sake.
    """
    shares = np.zeros(groups.shape[0])
    totals = np.zeros(scale.shape[0])
    for k in range(indices.shape[0]):
        values[k] *= scale[groups[indices[k]]]
        shares[indices[k]] += values[k]
        totals[groups[indices[k]]] += values[k]
    for j in range(shares.shape[0]):
        if totals[groups[j]] > 0.0:
            shares[j] /= totals[groups[j]]
    return shares


@njit(cache=True, nogil=True)
def _squares(groups: Codes, shares: Floats) -> Floats:
    """Q float64 (G,)."""
    q = np.zeros(groups.max() + 1)
    for j in range(shares.shape[0]):
        q[groups[j]] += shares[j] * shares[j]
    return q


@njit(cache=True, nogil=True)
def sign_pass(
    items: Ints, indptr: Ints, indices: Codes, values: Values, groups: Codes, shares: Floats, pace: Values
) -> Ints:
    """One reordering, int64 (M,). With D the signed sum of the rows so far, row a gets + if <D, a> <= 0 within
    rounding, else -.

    + rows fill the result from the front, - rows from the back. O(nnz + J).
    """
    q = _squares(groups, shares)
    t_sum = np.zeros(shares.shape[0])
    s_sum = np.zeros(q.shape[0])
    p_sum = np.zeros(q.shape[0])
    pace_sum = 0.0
    largest = 0.0
    out = np.empty_like(items)
    front = 0
    back = items.shape[0]
    for i in range(items.shape[0]):
        item = items[i]
        product = pace_sum * pace[item]
        size = abs(pace[item])
        for k in range(indptr[item], indptr[item + 1]):
            j = indices[k]
            g = groups[j]
            product += values[k] * (t_sum[j] - s_sum[g] * shares[j] - (p_sum[g] - s_sum[g] * q[g]))
            size += values[k]
        if product <= ROUNDING * size * largest:
            sign = 1.0
            out[front] = item
            front += 1
        else:
            sign = -1.0
            back -= 1
            out[back] = item
        pace_sum += sign * pace[item]
        largest = max(largest, abs(pace_sum))
        for k in range(indptr[item], indptr[item + 1]):
            j = indices[k]
            g = groups[j]
            t_sum[j] += sign * values[k]
            s_sum[g] += sign * values[k]
            p_sum[g] += sign * values[k] * shares[j]
            largest = max(largest, abs(t_sum[j]), abs(s_sum[g]))
    return out


@njit(cache=True, nogil=True)
def best_of_pool(
    items: Ints,
    indptr: Ints,
    indices: Codes,
    values: Values,
    groups: Codes,
    shares: Floats,
    pace: Values,
    pool: int,
) -> Ints:
    """The order, int64 (M,): of the next C = min(pool, M) items of the stream, the one of the smallest deviation goes.

    |D + a|^2 = |D|^2 + 2 <D, a> + |a|^2, and |D|^2 is common to all candidates, so a candidate scores

        score = known + pace R - sum_g (S_g u_g + E_g l_g),    u_g = sum_{j in g} c_j tau_j, R the pace placed so far,
        known = sum_j c_j (c_j / 2 + T_j) + sum_g l_g (l_g Q_g / 2 - u_g) + pace^2 / 2.

    Placing an item changes T in its own trait values only, so `known` is kept up for the candidates that share one,
    found in lists of the pool's entries by trait value. The sums over g are taken anew at every step, over all
    candidates side by side. Of scores that are equal within rounding the smallest item goes.

    O(M C G + pairs of entries that meet) time, O(C longest row + C G + J) scratch.
    """
    q = _squares(groups, shares)
    n_groups = q.shape[0]
    t_sum = np.zeros(shares.shape[0])
    s_sum = np.zeros(n_groups)
    p_sum = np.zeros(n_groups)
    e_sum = np.zeros(n_groups)
    pace_sum = 0.0

    size = min(pool, items.shape[0])
    width = 1
    for item in range(indptr.shape[0] - 1):
        width = max(width, indptr[item + 1] - indptr[item])
    who = np.empty(size, np.int64)
    known = np.empty(size)
    excess = np.empty(size)
    score = np.empty(size)
    length = np.empty((n_groups, size))
    target = np.empty((n_groups, size))
    # Entry e = slot * width + k is the k-th of the row in that slot; lists are linked both ways, -1 ends them.
    slot_of = np.arange(size * width) // width
    value = np.empty(size * width)
    next_ = np.empty(size * width, np.int64)
    back = np.empty(size * width, np.int64)
    head = np.full(shares.shape[0], -1, np.int64)
    longest_row = largest_t = 0.0

    out = np.empty_like(items)
    filled = 0
    coming = 0
    best = 0
    for t in range(items.shape[0]):
        while coming < items.shape[0] and (filled < size or known[best] == np.inf):
            slot = best if filled == size else filled
            filled = max(filled, slot + 1)
            item = items[coming]
            coming += 1
            who[slot] = item
            known[slot] = 0.0
            length[:, slot] = 0.0
            target[:, slot] = 0.0
            for k in range(indptr[item], indptr[item + 1]):
                j = indices[k]
                e = slot * width + k - indptr[item]
                value[e] = values[k]
                length[groups[j], slot] += value[e]
                target[groups[j], slot] += value[e] * shares[j]
                known[slot] += value[e] * (0.5 * value[e] + t_sum[j])
                back[e] = -1
                next_[e] = head[j]
                if head[j] >= 0:
                    back[head[j]] = e
                head[j] = e
            excess[slot] = pace[item]
            known[slot] += 0.5 * excess[slot] * excess[slot]
            for g in range(n_groups):
                known[slot] += length[g, slot] * (0.5 * length[g, slot] * q[g] - target[g, slot])
            longest_row = max(longest_row, length[:, slot].sum(), abs(excess[slot]))

        for c in range(filled):
            score[c] = known[c] + pace_sum * excess[c]
        for g in range(n_groups):
            s = s_sum[g]
            e_g = e_sum[g]
            for c in range(filled):
                score[c] -= s * target[g, c] + e_g * length[g, c]
        smallest = np.inf
        for c in range(filled):
            if score[c] < smallest:
                smallest = score[c]
        near = smallest + ROUNDING * longest_row * (longest_row + largest_t)
        best = -1
        for c in range(filled):
            if score[c] <= near and (best < 0 or who[c] < who[best]):
                best = c

        item = who[best]
        out[t] = item
        pace_sum += pace[item]
        for k in range(indptr[item], indptr[item + 1]):
            j = indices[k]
            e = best * width + k - indptr[item]
            if back[e] >= 0:
                next_[back[e]] = next_[e]
            else:
                head[j] = next_[e]
            if next_[e] >= 0:
                back[next_[e]] = back[e]
            t_sum[j] += value[e]
            s_sum[groups[j]] += value[e]
            p_sum[groups[j]] += value[e] * shares[j]
            largest_t = max(largest_t, t_sum[j])
            other = head[j]
            while other >= 0:
                known[slot_of[other]] += value[e] * value[other]
                other = next_[other]
        for g in range(n_groups):
            e_sum[g] = p_sum[g] - s_sum[g] * q[g]
        # An empty slot is never the best again; the next of the stream, if any, takes it.
        known[best] = np.inf
    return out
