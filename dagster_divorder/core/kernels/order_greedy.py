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


class Layout(NamedTuple):
    """Rows of the features of each class, int64 (classes,), -1 for a feature that all candidates share: u; length, of
    l. dense: the first row of the dense coordinates. features: their number. lead: the first group of each class, int64
    (classes,)."""

    u: Ints
    length: Ints
    dense: int
    features: int
    lead: Ints


@kernel
def _lay_out(classes: Classes, dims: int) -> Layout:
    n_classes = classes.varies.shape[0]
    at_u = np.full(n_classes, -1, np.int64)
    at_l = np.full(n_classes, -1, np.int64)
    count = 0
    for q in range(n_classes):
        at_u[q] = count
        count += 1
        if classes.varies[q]:
            at_l[q] = count
            count += 1
    at_dense = count
    count += dims
    lead = np.empty(n_classes, np.int64)
    for g in range(classes.group_class.shape[0] - 1, -1, -1):
        lead[classes.group_class[g]] = g
    return Layout(at_u, at_l, at_dense, count, lead)


class Placed(NamedTuple):
    """Placed totals: t float64 (J,), s float64 (G,), dense float64 (D,). squares, reached float64 (G,): a group's sums
    of sigma^2 and T sigma. largest float64 (1,): the largest T."""

    t: Floats
    s: Floats
    dense: Floats
    squares: Floats
    reached: Floats
    largest: Floats


class Candidates(NamedTuple):
    """The pool by slot: item int64 (slots,), base float64 (slots,), inf in free slots, features float64 (features,
    slots). column int64 (J + 1,): the entries of trait value j are [column[j], column[j + 1])."""

    item: Ints
    base: Floats
    features: Floats
    column: Ints


@kernel
def _close_gaps(
    pool: Candidates, filled: int, queue: Ints, coming: int, size: int, part: int
) -> tuple[int, int]:
    """Moves the candidates to the first slots, and takes more from queue[coming:] if `part` of `size` slots are free.
    Returns the number of filled slots and of items taken from the queue."""
    kept = 0
    for c in range(filled):
        if pool.base[c] != np.inf:
            pool.item[kept] = pool.item[c]
            kept += 1
    if kept <= size - part:
        more = min(size - kept, queue.shape[0] - coming)
        for c in range(more):
            pool.item[kept + c] = queue[coming + c]
        coming += more
        kept += more
    for c in range(kept, filled):
        pool.base[c] = np.inf
    return kept, coming


@kernel
def _sum_up(groups: Codes, share: Floats, placed: Placed) -> None:
    """Sets the sums of `placed` over each group's values."""
    placed.squares[:] = 0.0
    placed.reached[:] = 0.0
    largest = 0.0
    for j in range(groups.shape[0]):
        placed.squares[groups[j]] += share[j] * share[j]
        placed.reached[groups[j]] += placed.t[j] * share[j]
        largest = max(largest, placed.t[j])
    placed.largest[0] = largest


@kernel
def _count_entries(rows: SparseItems, pool: Candidates, filled: int) -> int:
    """Sets pool.column[j] to the end of the entries of trait value j; returns the number of all entries."""
    column = pool.column
    column[:] = 0
    for c in range(filled):
        for k in range(rows.indptr[pool.item[c]], rows.indptr[pool.item[c] + 1]):
            column[rows.indices[k]] += 1
    total = 0
    for j in range(column.shape[0] - 1):
        total += column[j]
        column[j] = total
    column[-1] = total
    return total


@kernel
def _describe(
    rows: SparseItems,
    share: Floats,
    classes: Classes,
    layout: Layout,
    placed: Placed,
    self_weight: float,
    pool: Candidates,
    filled: int,
    entry_slot: Codes,
    entry_value: Floats,
) -> float:
    """Sets base, features and entries by trait value of every candidate. Returns the largest length of a row."""
    indptr, indices, data, groups, weights, dense = rows
    n_groups = weights.shape[0]
    row_sums = np.zeros((2, n_groups))
    row_l, row_u = row_sums[0], row_sums[1]
    features, column = pool.features, pool.column
    longest = 0.0
    for c in range(filled - 1, -1, -1):
        item = pool.item[c]
        row_sums[:] = 0.0
        sum_ = 0.0
        reach = 0.0
        for k in range(indptr[item], indptr[item + 1]):
            j = indices[k]
            g = groups[j]
            value = np.float64(data[k])
            row_l[g] += value
            row_u[g] += value * share[j]
            sum_ += weights[g] * value * (0.5 * self_weight * value + placed.t[j])
            column[j] -= 1
            entry_slot[column[j]] = c
            entry_value[column[j]] = value
        for g in range(n_groups):
            sum_ += self_weight * weights[g] * row_l[g] * (0.5 * row_l[g] * placed.squares[g] - row_u[g])
            reach += weights[g] * row_l[g]
        for f in range(layout.features):
            features[f, c] = 0.0
        for g in range(n_groups):
            q = classes.group_class[g]
            features[layout.u[q], c] += weights[g] * classes.ratio[g] * row_u[g]
        for q in range(classes.varies.shape[0]):
            if layout.length[q] >= 0:
                features[layout.length[q], c] = row_l[layout.lead[q]]
        for d in range(dense.shape[1]):
            value = np.float64(dense[item, d])
            features[layout.dense + d, c] = value
            sum_ += 0.5 * self_weight * value * value
            reach += abs(value)
        pool.base[c] = sum_
        longest = max(longest, reach)
    return longest


@kernel
def _set_factors(weights: Floats, classes: Classes, layout: Layout, placed: Placed, factors: Floats) -> None:
    """Sets the factors of the features at this step: u has -S_g, l has -E_g."""
    factors[:] = 0.0
    for g in range(weights.shape[0]):
        q = classes.group_class[g]
        if layout.lead[q] == g:
            factors[layout.u[q]] = -placed.s[g]
        if layout.length[q] >= 0:
            off = placed.reached[g] - placed.s[g] * placed.squares[g]
            factors[layout.length[q]] -= weights[g] * classes.ratio[g] * off
    for d in range(placed.dense.shape[0]):
        factors[layout.dense + d] = placed.dense[d]


@kernel
def _place(
    item: int,
    rows: SparseItems,
    share: Floats,
    placed: Placed,
    pool: Candidates,
    entry_slot: Codes,
    entry_value: Floats,
) -> None:
    """Adds the item to T and S, and updates the base of candidates that share a trait value with it."""
    for d in range(placed.dense.shape[0]):
        placed.dense[d] += rows.dense[item, d]
    largest = placed.largest[0]
    for k in range(rows.indptr[item], rows.indptr[item + 1]):
        j = rows.indices[k]
        g = rows.groups[j]
        value = np.float64(rows.data[k])
        placed.t[j] += value
        placed.s[g] += value
        placed.reached[g] += value * share[j]
        largest = max(largest, placed.t[j])
        change = rows.weights[g] * value
        for i in range(pool.column[j], pool.column[j + 1]):
            pool.base[entry_slot[i]] += change * entry_value[i]
    placed.largest[0] = largest


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
    groups = rows.groups
    n_groups = rows.weights.shape[0]
    size = min(max(pool_size, fixed), queue.shape[0])
    part = max(1, size // REFILL_PARTS)
    layout = _lay_out(classes, rows.dense.shape[1])

    placed = Placed(
        totals.copy(),
        np.zeros(n_groups),
        dense_totals.copy(),
        np.zeros(n_groups),
        np.zeros(n_groups),
        np.zeros(1),
    )
    for j in range(groups.shape[0]):
        placed.s[groups[j]] += placed.t[j]
    pool = Candidates(
        np.empty(size, np.int64),
        np.full(size, np.inf),
        np.zeros((layout.features, size)),
        np.zeros(groups.shape[0] + 1, np.int64),
    )
    score = np.empty(size)
    factors = np.empty(layout.features)
    entry_slot = np.empty(0, np.int32)
    entry_value = np.empty(0)
    longest = 0.0

    out = np.empty_like(queue)
    filled = alive = coming = int(np.int64(0))  # Not a literal: `_close_gaps` would be compiled for it too.
    for step in range(steps):
        if alive <= filled - max(1, filled // REFILL_PARTS) or (
            coming < queue.shape[0] and alive <= size - part
        ):
            filled, coming = _close_gaps(pool, filled, queue, coming, size, part)
            alive = filled
            _sum_up(groups, share, placed)
            entries = _count_entries(rows, pool, filled)
            if entry_slot.shape[0] < entries:
                entry_slot = np.empty(entries + entries // 4, np.int32)
                entry_value = np.empty(entries + entries // 4)
            longest = _describe(
                rows, share, classes, layout, placed, self_weight, pool, filled, entry_slot, entry_value
            )

        best = step
        if step >= fixed:
            _set_factors(rows.weights, classes, layout, placed, factors)
            rounding = ROUNDING * longest * (longest + placed.largest[0])
            best = choose(pool.base, pool.features, factors, filled, rounding, score)
        item = pool.item[best]
        out[step] = item
        pool.base[best] = np.inf
        alive -= 1
        _place(item, rows, share, placed, pool, entry_slot, entry_value)
    left = steps
    for c in range(filled):
        if pool.base[c] != np.inf:
            out[left] = pool.item[c]
            left += 1
    for c in range(coming, queue.shape[0]):
        out[left + c - coming] = queue[c]
    return out
