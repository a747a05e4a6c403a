"""Exact greedy over a pool of candidates, on sparse rows. `balanced` has a sliding pool; `f1`, `f2` and `f3` have a
pool as large as the problem.

Letters: M items, J trait values, G groups, C candidates. The row of an item has c_j for trait value j; l_g is its sum
in group g, g(j) the group of j, w_g its weight, sigma_j the whole's share of j in its group. T_j and S_g are the placed
totals. With a_j = c_j - sigma_j l_g and D_j = T_j - sigma_j S_g the deviation after placing the item is |D + a|^2 in
the norm that weighs group g by w_g. |D|^2 is common to all candidates, so a candidate scores

    <D, a> + self_weight |a|^2 / 2 = base - sum_g w_g (S_g u_g + E_g l_g),
    u_g = sum_{j in g} c_j sigma_j,    E_g = sum_{j in g} D_j sigma_j = sum T_j sigma_j - S_g Q_g,
    base = sum_j w_g c_j T_j + self_weight sum_g w_g (sum_{j in g} c_j^2 / 2 - l_g u_g + l_g^2 Q_g / 2),

where Q_g = sum_{j in g} sigma_j^2. Placing an item changes T only in its own trait values, so `base` changes only for
candidates that share one; the rest is a sum of few features of the candidate (u, l) with coefficients that change at
every step. The dense coordinates z of a row, signed and centred by the caller, are features too; their factors are the
placed sums.

Groups whose l_g are proportional for all items have proportional S_g, so their features are summed: sequences of
equal length have one feature for any number of groups. Deviations come from raw sums; no difference is accumulated, so
no rounding error drifts. Arithmetic is float64, in one thread, in an order that depends on the input alone.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel
from dagster_divorder.core.rows import SparseItems

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]

# A difference below this share of its terms is rounding, so a tie.
ROUNDING = 1e-13
# Candidates scored side by side: their scores stay in the first-level cache.
BLOCK = 256
# Items whose lengths are compared at once.
COMPARED = 1 << 16
# The pool closes its gaps and is topped up when one of this many parts is gone.
REFILL_PARTS = 4


class Classes(NamedTuple):
    """Groups of proportional lengths. group_class: int64 (G,). ratio: float64 (G,), a group's lengths over those of its
    class's first group. varies: bool (classes,), whether lengths differ between items."""

    group_class: Ints
    ratio: Floats
    varies: NDArray[np.bool_]


def classes_of(rows: SparseItems, whole: Floats) -> Classes:
    """Classes, by exact comparison of all items' lengths with the whole's totals, float64 (J,). If a group of the whole
    is empty, every group is its own class. O(nnz + M pairs of groups)."""
    n_groups = len(rows.weights)
    whole = np.bincount(rows.groups, weights=whole, minlength=n_groups).astype(np.float64)
    like, varies = np.full((n_groups, n_groups), (whole > 0.0).all()), np.zeros(n_groups, np.bool_)
    first = np.zeros(n_groups)
    for begin in range(0, len(rows.indptr) - 1, COMPARED):
        ends = rows.indptr[begin : begin + COMPARED + 1]
        row, entries = np.arange(len(ends) - 1).repeat(np.diff(ends)), slice(ends[0], ends[-1])
        cell = row * n_groups + rows.groups[rows.indices[entries]]
        lengths = np.bincount(cell, rows.data[entries], (len(ends) - 1) * n_groups).reshape(-1, n_groups)
        first = first if begin else lengths[0]
        varies |= (lengths != first).any(axis=0)
        for g, h in np.argwhere(np.tril(like, -1)):
            like[g, h] = (lengths[:, g] * whole[h] == lengths[:, h] * whole[g]).all()
    lead = np.arange(n_groups)
    for g in range(n_groups):
        lead[g] = next((h for h in range(g) if lead[h] == h and like[g, h]), g)
    leads, group_class = np.unique(lead, return_inverse=True)
    ratio = np.divide(whole, whole[lead], out=np.ones(n_groups), where=lead != np.arange(n_groups))
    return Classes(group_class, ratio, varies[leads])


@kernel
def totals_of(items: Ints, rows: SparseItems) -> Floats:
    """Sum of the items' rows, float64 (J,). O(their entries)."""
    sums = np.zeros(rows.groups.shape[0])
    for item in items:
        for k in range(rows.indptr[item], rows.indptr[item + 1]):
            sums[rows.indices[k]] += rows.data[k]
    return sums


@kernel
def choose(
    base: Floats, features: Floats, factors: Floats, filled: int, rounding: float, score: Floats
) -> int:
    """The slot of the smallest score base[c] + sum_f factors[f] features[f, c] of the first `filled` slots; the first
    of scores equal within `rounding`. Free slots have base = inf. Writes score, float64 (slots,). O(filled features).
    """
    least = np.inf
    for begin in range(0, filled, BLOCK):
        end = min(begin + BLOCK, filled)
        score[begin:end] = base[begin:end]
        for f in range(factors.shape[0]):
            for c in range(begin, end):
                score[c] += factors[f] * features[f, c]
        for c in range(begin, end):
            if score[c] < least:
                least = score[c]
    for c in range(filled):
        if score[c] <= least + rounding:
            return c
    return -1


@kernel
def best_of_pool(
    queue: Ints,
    rows: SparseItems,
    share: Floats,
    classes: Classes,
    totals: Floats,
    dense_totals: Floats,
    pool_size: int,
    self_weight: float,
    fixed: int,
    steps: int,
) -> Ints:
    """The order, int64 (n,), of the items `queue`, int64 (n,): the candidate in the pool with the best score goes next;
    of equal ones, the first in the queue. The first `fixed` items keep their places, as do all after `steps`.

    The pool takes the first min(pool_size, n) of the queue, and is topped up from it when a quarter (at least 1) is
    gone. share: float64 (J,), of the whole. totals: float64 (J,), dense_totals: float64 (D,), sums over the items
    before the queue. self_weight: weight of |a|^2 in the score, 1 for the exact greedy. O(n (C features + pairs of
    entries that meet) + REFILL_PARTS nnz) time, O(C (entries + features) + J) scratch.
    """
    indptr, indices, data, groups, weights, dense = rows
    group_class, ratio, varies = classes
    n_groups, n_values, dims = weights.shape[0], groups.shape[0], dense.shape[1]
    # Rows of the features: u of each class, l if it varies, then the dense coordinates; the first group of each class.
    row_of_u, row_of_l = np.empty(len(varies), np.int64), np.full(len(varies), -1)
    lead, n_features = np.empty(len(varies), np.int64), 0
    for q in range(len(varies)):
        row_of_u[q] = n_features
        n_features += 1
        if varies[q]:
            row_of_l[q] = n_features
            n_features += 1
    for g in range(n_groups - 1, -1, -1):
        lead[group_class[g]] = g
    row_of_dense = n_features
    n_features += dims

    # What is placed: T, S, the dense sums; Q_g and sum T sigma of each group; the largest T.
    t, s, placed = totals.copy(), np.zeros(n_groups), dense_totals.copy()
    squares, reached, largest = np.zeros(n_groups), np.zeros(n_groups), 0.0
    for j in range(n_values):
        s[groups[j]] += t[j]
    # The candidates by slot, base = inf in free slots; the entries of value j are [column[j], column[j + 1]).
    size = min(max(pool_size, fixed), queue.shape[0])
    part = max(1, size // REFILL_PARTS)
    slot_item, base, features = np.empty(size, np.int64), np.full(size, np.inf), np.zeros((n_features, size))
    column, entry_slot, entry_value = np.zeros(n_values + 1, np.int64), np.empty(0, np.int32), np.empty(0)
    score, factors, row_sums = np.empty(size), np.empty(n_features), np.zeros((2, n_groups))
    row_l, row_u = row_sums[0], row_sums[1]
    longest = 0.0

    out = np.empty_like(queue)
    filled, alive, coming = 0, 0, 0
    for step in range(steps):
        if alive <= filled - max(1, filled // REFILL_PARTS) or (
            coming < queue.shape[0] and alive <= size - part
        ):
            # Close the gaps, and take more from the queue if a part is free.
            kept = 0
            for c in range(filled):
                if base[c] != np.inf:
                    slot_item[kept] = slot_item[c]
                    kept += 1
            if kept <= size - part:
                more = min(size - kept, queue.shape[0] - coming)
                slot_item[kept : kept + more] = queue[coming : coming + more]
                coming += more
                kept += more
            base[kept:filled] = np.inf
            filled = alive = kept

            # Sums anew, so that no rounding error drifts.
            squares[:] = 0.0
            reached[:] = 0.0
            largest = 0.0
            for j in range(n_values):
                squares[groups[j]] += share[j] * share[j]
                reached[groups[j]] += t[j] * share[j]
                largest = max(largest, t[j])
            # column[j]: first the number of the entries of value j, then their end, which the loop below moves down.
            column[:] = 0
            for c in range(filled):
                for k in range(indptr[slot_item[c]], indptr[slot_item[c] + 1]):
                    column[indices[k]] += 1
            entries = 0
            for j in range(n_values):
                entries += column[j]
                column[j] = entries
            column[n_values] = entries
            if entry_slot.shape[0] < entries:
                entry_slot, entry_value = (
                    np.empty(entries + entries // 4, np.int32),
                    np.empty(entries + entries // 4),
                )
            longest = 0.0
            for c in range(filled - 1, -1, -1):
                item = slot_item[c]
                row_sums[:] = 0.0
                sum_, reach = 0.0, 0.0
                for k in range(indptr[item], indptr[item + 1]):
                    j = indices[k]
                    g = groups[j]
                    value = np.float64(data[k])
                    row_l[g] += value
                    row_u[g] += value * share[j]
                    sum_ += weights[g] * value * (0.5 * self_weight * value + t[j])
                    column[j] -= 1
                    entry_slot[column[j]] = c
                    entry_value[column[j]] = value
                for f in range(n_features):
                    features[f, c] = 0.0
                for g in range(n_groups):
                    sum_ += self_weight * weights[g] * row_l[g] * (0.5 * row_l[g] * squares[g] - row_u[g])
                    reach += weights[g] * row_l[g]
                    features[row_of_u[group_class[g]], c] += weights[g] * ratio[g] * row_u[g]
                for q in range(len(varies)):
                    if row_of_l[q] >= 0:
                        features[row_of_l[q], c] = row_l[lead[q]]
                for d in range(dims):
                    value = np.float64(dense[item, d])
                    features[row_of_dense + d, c] = value
                    sum_ += 0.5 * self_weight * value * value
                    reach += abs(value)
                base[c] = sum_
                longest = max(longest, reach)

        best = step
        if step >= fixed:
            # The factors of the features at this step: u has -S_g, l has -E_g.
            factors[:] = 0.0
            for g in range(n_groups):
                q = group_class[g]
                if lead[q] == g:
                    factors[row_of_u[q]] = -s[g]
                if row_of_l[q] >= 0:
                    factors[row_of_l[q]] -= weights[g] * ratio[g] * (reached[g] - s[g] * squares[g])
            for d in range(dims):
                factors[row_of_dense + d] = placed[d]
            rounding = ROUNDING * longest * (longest + largest)
            best = choose(base, features, factors, filled, rounding, score)
        item = slot_item[best]
        out[step] = item
        base[best] = np.inf
        alive -= 1
        for d in range(dims):
            placed[d] += dense[item, d]
        for k in range(indptr[item], indptr[item + 1]):
            j = indices[k]
            g = groups[j]
            value = np.float64(data[k])
            t[j] += value
            s[g] += value
            reached[g] += value * share[j]
            largest = max(largest, t[j])
            change = weights[g] * value
            # Candidates that share the value.
            for i in range(column[j], column[j + 1]):
                base[entry_slot[i]] += change * entry_value[i]
    left = steps
    for c in range(filled):
        if base[c] != np.inf:
            out[left] = slot_item[c]
            left += 1
    out[left:] = queue[coming:]
    return out
