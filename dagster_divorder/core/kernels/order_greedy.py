"""Exact greedy over a pool of candidates, on sparse rows: for `balanced` with a sliding pool, for `f1`, `f2` and `f3`
with a pool as large as the problem.

Letters: M items, J trait values, G groups, C candidates, P segments of the path. The row of an item has c_j for trait
value j; l_g is its sum in group g, g(j) the group of j, w_g its weight. T_j and S_g are what is placed, X_j what the
path asks for by then, sigma_j the share it asks for at this point. With a_j = c_j - sigma_j l_g and D_j = T_j - X_j
the deviation once the item is placed is |D + a|^2 in the norm that weighs group g by w_g. |D|^2 is common to all
candidates, so a candidate scores

    <D, a> + self_weight |a|^2 / 2 = base - sum_g w_g (alpha_g u_g + E_g l_g),
    u_g = sum_{j in g} c_j A_j,    E_g = sum_{j in g} D_j sigma_j,
    base = sum_j w_g c_j (T_j - K_j) + self_weight sum_g w_g (sum_{j in g} c_j^2 / 2 - l_g u_g + l_g^2 Q_g / 2),

where X_j = K_j + A_j alpha_g, sigma_j = A_j, Q_g = sum A_j^2 and alpha_g is what group g received since the segment
began. Placing an item changes T in its own trait values only, so `base` is kept up for the candidates that share one;
the rest is a sum of few features of the candidate (u, l) with coefficients that change at every step. Where the share
moves inside a segment, sigma_j = A_j + B_j x with x the tokens of group 0 since the segment began, so

    X_j = K_j + A_j alpha_g + B_j beta_g,    beta_g = x alpha_g - rho_g x^2 / 2,

rho_g being group g's growth by token of group 0: the integral of sigma, plus sigma for what the group received beyond
its pace. It adds the features v_g = sum c_j B_j, l_g v_g and l_g^2. The dense coordinates z of a row, signed and
centred by the caller, are features as they are, and the sums of those placed are their factors.

Groups whose l_g are proportional for all items have proportional alpha_g, so their features are summed: sequences of
equal length have one feature, however many groups. Deviations are taken from raw sums; no difference is accumulated, so
none drifts. Arithmetic is float64, in one thread, in an order that depends on the input alone.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]

# Differences below this share of the terms they come from are rounding: a tie.
ROUNDING = 1e-13
# Candidates scored side by side: their running minima stay in the nearest cache.
BLOCK = 256
# The pool is topped up, and gaps in it closed, when one of so many parts of it is gone.
REFILL_PARTS = 4


class Rows(NamedTuple):
    """Items: indptr int64 (M+1,); indices int32, data int32, int64 or float64 (nnz,); groups int32 (J,); weights
    float64 (G,); dense float32 (M, D), signed coordinates of which every prefix is to sum to nearly nothing."""

    indptr: Ints
    indices: Codes
    data: NDArray[Any]
    groups: Codes
    weights: Floats
    dense: NDArray[np.float32]


class Path(NamedTuple):
    """What the totals are to follow. Segment k holds from at[k] tokens of group 0 on (float64 (P,), rising): reached
    K, share A, drift B float64 (P, J); passed float64 (P, G), the groups' totals there; growth rho float64 (P, G)."""

    at: Floats
    reached: Floats
    share: Floats
    drift: Floats
    passed: Floats
    growth: Floats


@njit(cache=True, nogil=True)
def where_sums_are(sums: Floats, path: Path, group: int, placed: Floats, most: float) -> Floats:
    """theta, float64 (n,): tokens of group 0 after which the max(placed_j, X_j(theta)) sum to each of `sums`. By
    bisection from 0 to `most`, since they rise with theta. path, placed: of the trait values of one group alone."""
    found = np.empty_like(sums)
    for at in range(len(sums)):
        low, high = 0.0, most
        for _ in range(60):
            middle = 0.5 * (low + high)
            segment = max(int(np.searchsorted(path.at, middle, side="right")) - 1, 0)
            x = middle - path.at[segment]
            grown = path.growth[segment, group] * x
            total = 0.0
            # Summed value by value, whatever their number: its order decides the last bits.
            for j in range(len(placed)):
                share = path.share[segment, j] + 0.5 * x * path.drift[segment, j]
                total += max(placed[j], path.reached[segment, j] + grown * share)
            if total > sums[at]:
                high = middle
            else:
                low = middle
        found[at] = high
    return found


class Classes(NamedTuple):
    """Groups of proportional lengths: of int64 (G,), the class of each group; ratio float64 (G,), its lengths over
    those of the first of its class; varies bool (classes,), whether lengths differ between items."""

    of: Ints
    ratio: Floats
    varies: NDArray[np.bool_]


@njit(cache=True, nogil=True)
def _compare_lengths(rows: Rows, whole: Floats, like: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether lengths differ between items, bool (G,). Reads `like`, bool (G, G), below its diagonal, and takes out of
    it the pairs of groups that some item holds in other proportions than the whole, float64 (G,)."""
    indptr, indices, data, groups, weights, _ = rows
    n_groups = weights.shape[0]
    varies = np.zeros(n_groups, np.bool_)
    first = np.zeros(n_groups)
    length = np.empty(n_groups)
    # Pairs that are alike so far: most go at the first items.
    pairs = np.argwhere(like)
    pairs = pairs[pairs[:, 0] > pairs[:, 1]]
    left = pairs.shape[0]
    for s in range(indptr.shape[0] - 1):
        length[:] = 0.0
        for k in range(indptr[s], indptr[s + 1]):
            length[groups[indices[k]]] += data[k]
        if s == 0:
            first[:] = length
        for g in range(n_groups):
            varies[g] |= length[g] != first[g]
        at = 0
        while at < left:
            g, h = pairs[at]
            if length[g] * whole[h] == length[h] * whole[g]:
                at += 1
                continue
            like[g, h] = False
            left -= 1
            pairs[at] = pairs[left]
    return varies


def classes_of(rows: Rows, placed: Floats, whole: Floats) -> Classes:
    """By exact comparison of all items' lengths, and of the totals placed, with the totals of the whole, float64 (J,)
    both. Where a group of the whole has none, every group is a class of its own. O(nnz + M (G + pairs of a class))."""
    n_groups = len(rows.weights)
    placed = np.bincount(rows.groups, weights=placed, minlength=n_groups).astype(np.float64)
    whole = np.bincount(rows.groups, weights=whole, minlength=n_groups).astype(np.float64)
    like = np.outer(placed, whole) == np.outer(whole, placed)
    like &= (whole > 0.0).all()
    varies = _compare_lengths(rows, whole, like)
    lead = np.arange(n_groups)
    for g in range(n_groups):
        lead[g] = next((h for h in range(g) if lead[h] == h and like[g, h]), g)
    leads, of = np.unique(lead, return_inverse=True)
    ratio = np.divide(whole, whole[lead], out=np.ones(n_groups), where=lead != np.arange(n_groups))
    return Classes(of, ratio, varies[leads])


@njit(cache=True, nogil=True)
def totals_of(items: Ints, rows: Rows) -> Floats:
    """Sum of the rows of some items, float64 (J,). O(their entries)."""
    sums = np.zeros(rows.groups.shape[0])
    for item in items:
        for k in range(rows.indptr[item], rows.indptr[item + 1]):
            sums[rows.indices[k]] += rows.data[k]
    return sums


@njit(cache=True, nogil=True)
def choose(base: Floats, features: Floats, factors: Floats, blocks: int, rounding: float) -> int:
    """The slot of the smallest score base[c] + sum_f factors[f] features[f, c]; of scores that are equal within
    `rounding` the first.

    Slots are those of the first `blocks` blocks of BLOCK; free ones have base = inf. A single running minimum would
    wait for itself at every candidate, so each of the BLOCK lanes has its own. There are 1 or an even number of
    features. O(slots features).
    """
    lane = np.full(BLOCK, np.inf)
    score = np.empty(BLOCK)
    count = factors.shape[0]
    for b in range(blocks):
        begin, end = b * BLOCK, (b + 1) * BLOCK
        sum_ = base[begin:end]
        if count == 1:
            only, factor = features[0, begin:end], factors[0]
            for c in range(BLOCK):
                value = sum_[c] + factor * only[c]
                lane[c] = value if value < lane[c] else lane[c]
            continue
        fours = (count - 1) // 4 * 4
        for f in range(0, fours, 4):
            x0, x1 = features[f, begin:end], features[f + 1, begin:end]
            x2, x3 = features[f + 2, begin:end], features[f + 3, begin:end]
            f0, f1, f2, f3 = factors[f], factors[f + 1], factors[f + 2], factors[f + 3]
            for c in range(BLOCK):
                score[c] = sum_[c] + f0 * x0[c] + f1 * x1[c] + f2 * x2[c] + f3 * x3[c]
            sum_ = score
        x0, x1, f0, f1 = (
            features[fours, begin:end],
            features[fours + 1, begin:end],
            factors[fours],
            factors[fours + 1],
        )
        if count - fours == 2:
            for c in range(BLOCK):
                value = sum_[c] + f0 * x0[c] + f1 * x1[c]
                lane[c] = value if value < lane[c] else lane[c]
            continue
        x2, x3 = features[fours + 2, begin:end], features[fours + 3, begin:end]
        f2, f3 = factors[fours + 2], factors[fours + 3]
        for c in range(BLOCK):
            value = sum_[c] + f0 * x0[c] + f1 * x1[c] + f2 * x2[c] + f3 * x3[c]
            lane[c] = value if value < lane[c] else lane[c]
    # The least of all lanes, by halves: one after the other would wait for itself again.
    width = BLOCK
    score[:] = lane
    while width > 1:
        width //= 2
        for c in range(width):
            score[c] = min(score[c], score[c + width])
    least = score[0]
    best = -1
    for c in range(BLOCK):
        if lane[c] <= least + rounding:
            for slot in range(c, blocks * BLOCK, BLOCK):
                value = base[slot]
                for f in range(factors.shape[0]):
                    value += factors[f] * features[f, slot]
                if value <= least + rounding and (best < 0 or slot < best):
                    best = slot
    return best


@njit(cache=True, nogil=True)
def best_of_pool(
    queue: Ints,
    rows: Rows,
    path: Path,
    classes: Classes,
    placed: Floats,
    dense_placed: Floats,
    pool: int,
    self_weight: float,
    fixed: int,
    steps: int,
) -> Ints:
    """The order, int64 (n,), of the items `queue`, int64 (n,): of the pool's candidates the one with the best score
    goes, of equal ones the first in the queue. The first `fixed` go as they come, and so do all after `steps`.

    The pool takes the first min(pool, n) of the queue, and is topped up from it when a quarter (at least 1) is gone.
    placed: float64 (J,), totals before the first; dense_placed: float64 (D,), sum of the dense rows before it.
    self_weight: weight of |a|^2 in the score, 1 for the exact greedy. O(n (C features + pairs of entries that meet) +
    REFILL_PARTS nnz) time, O(C (entries + features) + J) scratch.
    """
    indptr, indices, data, groups, weights, dense = rows
    n_groups = weights.shape[0]
    n_values = groups.shape[0]
    n_classes = classes.varies.shape[0]
    moving = np.any(path.drift != 0.0)
    dims = dense.shape[1]
    size = min(max(pool, fixed), queue.shape[0])
    part = max(1, size // REFILL_PARTS)

    # Where each feature is kept; -1: it is the same for all candidates.
    at_u = np.full(n_classes, -1, np.int64)
    at_l = np.full(n_classes, -1, np.int64)
    at_v = np.full(n_classes, -1, np.int64)
    n_features = 0
    for q in range(n_classes):
        at_u[q] = n_features
        n_features += 1
        if classes.varies[q]:
            at_l[q] = n_features
            n_features += 1
        if moving:
            at_v[q] = n_features
            n_features += 3
    at_dense = n_features
    n_features += dims
    # `choose` takes 1 or an even number; what is left stays 0.
    if n_features > 1:
        n_features += n_features % 2

    t_sum = placed.copy()
    s_sum = np.zeros(n_groups)
    for j in range(n_values):
        s_sum[groups[j]] += t_sum[j]
    dense_sum = dense_placed.copy()

    blocks = (size + BLOCK - 1) // BLOCK
    item_of = np.empty(blocks * BLOCK, np.int64)
    base = np.full(blocks * BLOCK, np.inf)
    features = np.zeros((n_features, blocks * BLOCK))
    factors = np.empty(n_features)
    # Entries of the candidates by trait value: those of j are entry_*[column[j]:column[j + 1]].
    column = np.zeros(n_values + 1, np.int64)
    entry_slot = np.empty(0, np.int32)
    entry_value = np.empty(0)
    lead = np.empty(n_classes, np.int64)
    for g in range(n_groups - 1, -1, -1):
        lead[classes.of[g]] = g
    # Products of a = share, b = drift and t = T - K over the values of each group, and sums of one row.
    products = np.zeros((5, n_groups))
    aa, ab, bb, ta, tb = products[0], products[1], products[2], products[3], products[4]
    e = np.zeros(n_groups)
    of_row = np.zeros((3, n_groups))
    row_l, row_u, row_v = of_row[0], of_row[1], of_row[2]
    longest = largest = 0.0

    out = np.empty_like(queue)
    segment = 0
    filled = alive = coming = 0
    for step in range(steps):
        # Refill: the pool is topped up and its gaps closed; K, A, B become those of the segment, base, u, v and l those
        # of every candidate.
        ended = segment + 1 < path.at.shape[0] and s_sum[0] >= path.at[segment + 1]
        if (
            alive <= filled - max(1, filled // REFILL_PARTS)
            or (coming < queue.shape[0] and alive <= size - part)
            or ended
        ):
            while segment + 1 < path.at.shape[0] and s_sum[0] >= path.at[segment + 1]:
                segment += 1
            kept = 0
            for c in range(filled):
                if base[c] != np.inf:
                    item_of[kept] = item_of[c]
                    kept += 1
            if kept <= size - part:
                more = min(size - kept, queue.shape[0] - coming)
                for c in range(more):
                    item_of[kept + c] = queue[coming + c]
                coming += more
                kept += more
            for c in range(kept, filled):
                base[c] = np.inf
            filled = alive = kept
            blocks = (filled + BLOCK - 1) // BLOCK

            share, drift, reached = path.share[segment], path.drift[segment], path.reached[segment]
            products.fill(0.0)
            largest = 0.0
            for j in range(n_values):
                g = groups[j]
                aa[g] += share[j] * share[j]
                ab[g] += share[j] * drift[j]
                bb[g] += drift[j] * drift[j]
                ta[g] += (t_sum[j] - reached[j]) * share[j]
                tb[g] += (t_sum[j] - reached[j]) * drift[j]
                largest = max(largest, abs(t_sum[j] - reached[j]))

            column.fill(0)
            for c in range(filled):
                for k in range(indptr[item_of[c]], indptr[item_of[c] + 1]):
                    column[indices[k]] += 1
            total = 0
            for j in range(n_values):
                total += column[j]
                column[j] = total
            column[n_values] = total
            if entry_slot.shape[0] < total:
                entry_slot = np.empty(total + total // 4, np.int32)
                entry_value = np.empty(total + total // 4)
            longest = 0.0
            for c in range(filled - 1, -1, -1):
                item = item_of[c]
                of_row.fill(0.0)
                sum_ = 0.0
                reach = 0.0
                for k in range(indptr[item], indptr[item + 1]):
                    j = indices[k]
                    g = groups[j]
                    value = np.float64(data[k])
                    row_l[g] += value
                    row_u[g] += value * share[j]
                    row_v[g] += value * drift[j]
                    sum_ += weights[g] * value * (0.5 * self_weight * value + t_sum[j] - reached[j])
                    column[j] -= 1
                    entry_slot[column[j]] = c
                    entry_value[column[j]] = value
                for g in range(n_groups):
                    sum_ += self_weight * weights[g] * row_l[g] * (0.5 * row_l[g] * aa[g] - row_u[g])
                    reach += weights[g] * row_l[g]
                for f in range(n_features):
                    features[f, c] = 0.0
                for g in range(n_groups):
                    q = classes.of[g]
                    factor = weights[g] * classes.ratio[g]
                    features[at_u[q], c] += factor * row_u[g]
                    if moving:
                        features[at_v[q], c] += factor * row_v[g]
                for q in range(n_classes):
                    length = row_l[lead[q]]
                    if at_l[q] >= 0:
                        features[at_l[q], c] = length
                    if moving:
                        features[at_v[q] + 1, c] = length * features[at_v[q], c]
                        features[at_v[q] + 2, c] = length * length
                for d in range(dims):
                    value = np.float64(dense[item, d])
                    features[at_dense + d, c] = value
                    sum_ += 0.5 * self_weight * value * value
                    reach += abs(value)
                base[c] = sum_
                longest = max(longest, reach)

        # Factors of the features at this step: of u -alpha_g, of l -E_g, of v -beta_g.
        x = s_sum[0] - path.at[segment]
        factors.fill(0.0)
        for g in range(n_groups):
            q = classes.of[g]
            ratio = classes.ratio[g]
            alpha = s_sum[g] - path.passed[segment, g]
            beta = x * alpha - 0.5 * path.growth[segment, g] * x * x if moving else 0.0
            e[g] = ta[g] + x * tb[g] - alpha * (aa[g] + x * ab[g]) - beta * (ab[g] + x * bb[g])
            if lead[q] == g:
                factors[at_u[q]] = -alpha
                if moving:
                    factors[at_v[q]] = -beta
                    factors[at_v[q] + 1] = -self_weight * x
            if at_l[q] >= 0:
                factors[at_l[q]] -= weights[g] * ratio * e[g]
            if moving:
                factors[at_v[q] + 2] += (
                    0.5 * self_weight * weights[g] * ratio * ratio * x * (2.0 * ab[g] + x * bb[g])
                )
        for d in range(dims):
            factors[at_dense + d] = dense_sum[d]

        # Choose: the candidate with the least score.
        rounding = ROUNDING * longest * (longest + largest)
        best = step
        if step >= fixed:
            best = choose(base, features, factors, blocks, rounding)

        # Place it: T and S change in its trait values, and `base` of the candidates that share one.
        item = item_of[best]
        out[step] = item
        base[best] = np.inf
        alive -= 1
        for d in range(dims):
            dense_sum[d] += dense[item, d]
        for k in range(indptr[item], indptr[item + 1]):
            j = indices[k]
            g = groups[j]
            value = np.float64(data[k])
            t_sum[j] += value
            s_sum[g] += value
            ta[g] += value * path.share[segment, j]
            tb[g] += value * path.drift[segment, j]
            largest = max(largest, abs(t_sum[j] - path.reached[segment, j]))
            change = weights[g] * value
            for i in range(column[j], column[j + 1]):
                base[entry_slot[i]] += change * entry_value[i]
    left = steps
    for c in range(filled):
        if base[c] != np.inf:
            out[left] = item_of[c]
            left += 1
    for c in range(coming, queue.shape[0]):
        out[left + c - coming] = queue[c]
    return out
