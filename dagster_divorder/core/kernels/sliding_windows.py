"""One sweep of a window over every position of a stream of items: the hot loop of `core.metrics.window_deviation`.

Letters: M items in order, J trait values, G groups, W tokens a window, T tokens in all, nnz stored entries.

Algebra. Item s takes the positions [S_s, S_s + l_s), its rows spread evenly over them. With the window at [a, a + W),
i the item under its start and k the item under its end, the amount of trait value j inside is

    n_j(a) = sum_{i <= s < k} c_sj - c_ij (a - S_i) / l_i + c_kj (a + W - S_k) / l_k

which is linear in `a` until an end meets an item boundary. At such a breakpoint at most one end lies inside an item,
and only the values stored in that item and in those just passed have another n_j than at the breakpoint before. A group
in tokens has q_j = n_j / W, so only these values' |q_j - p_j| change: they are leaves of a segment tree whose root is
the maximum. A group in another unit has q_j = n_j / sum of the group's n_j, a ratio of linear functions and so monotone
between breakpoints; all its values change, and each breakpoint looks at them all.

Documents, whose tokens share one value of each trait, have their own, shorter sweep: n_j is a whole number everywhere.

Guarantee: whole items are summed in int64 and never as floats; equal to the twin in `tests/twins/metrics.py`.
Cost: O(nnz log J) for groups in tokens, O(M J) for others; O(J) memory beside the inputs. One thread.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@njit(cache=True, nogil=True)
def item_sums(
    indptr: Ints, indices: NDArray[np.int32], data: NDArray[Any], groups: NDArray[np.int32], n_groups: int
) -> tuple[Ints, NDArray[np.bool_]]:
    """(lengths int64 (items,): each row's sum in group 0; own_unit (G,): a row sums to something else there).

    Rows without tokens decide nothing: they are in no window.
    """
    items = indptr.shape[0] - 1
    lengths = np.zeros(items, np.int64)
    own_unit = np.zeros(n_groups, np.bool_)
    sums = np.zeros(n_groups, np.int64)
    for s in range(items):
        sums[:] = 0
        for e in range(indptr[s], indptr[s + 1]):
            sums[groups[indices[e]]] += data[e]
        lengths[s] = sums[0]
        if sums[0] > 0:
            for g in range(n_groups):
                own_unit[g] |= sums[g] != sums[0]
    return lengths, own_unit


@njit(cache=True, nogil=True)
def stream_totals(
    order: Ints, indptr: Ints, indices: NDArray[np.int32], data: NDArray[Any], n_values: int
) -> Ints:
    """int64 (J,): the sum of each trait value over the items of `order`, repeated ones repeatedly."""
    totals = np.zeros(n_values, np.int64)
    for s in order:
        for e in range(indptr[s], indptr[s + 1]):
            totals[indices[e]] += data[e]
    return totals


@njit(inline="always")
def _put(tree: Floats, sums: Floats, group: int, base: int, leaf: int, value: float) -> None:
    """Set a leaf of the group's tree, whose root is base + 1, and mend the maxima above it and the group's sum."""
    sums[group] += value - tree[base + leaf]
    tree[base + leaf] = value
    node = leaf >> 1
    while node >= 1:
        most = max(tree[base + 2 * node], tree[base + 2 * node + 1])
        if most == tree[base + node]:
            break
        tree[base + node] = most
        node >>= 1


@njit(cache=True, nogil=True)
def slide(
    order: Ints,
    lengths: Ints,
    indptr: Ints,
    indices: NDArray[np.int32],
    data: NDArray[Any],
    groups: NDArray[np.int32],
    leaves: Ints,
    share: Floats,
    own_unit: NDArray[np.bool_],
    bases: Ints,
    widths: Ints,
    window: int,
) -> tuple[Floats, Floats, Floats, Floats, Ints]:
    """worst, mean, worst_tv, mean_tv float64 (G,) and worst_start int64 (G,) over all positions of the window.

    order int64 (M,): items with tokens, at least `window` of them in all; lengths (items,) by item.
    groups int32 (J,); leaves int64 (J,): widths[g] + the value's number in its group; share float64 (J,): p.
    bases, widths int64 (G,): group g's tree lies at [bases[g], bases[g] + 2 widths[g]), its leaves in the second
    half; widths are powers of two. Writes the result only.

    The mean is the trapezoid integral over the breakpoints. The group's sum of |q_j - p_j| is carried along, and taken
    afresh from the leaves every so often, so that rounding does not add up over millions of steps.
    """
    n_groups = bases.shape[0]
    n_values = groups.shape[0]
    items = order.shape[0]
    worst = np.full(n_groups, -1.0)
    worst_tv = np.zeros(n_groups)
    start = np.zeros(n_groups, np.int64)
    area = np.zeros(n_groups)
    area_tv = np.zeros(n_groups)
    before = np.zeros(n_groups)
    before_tv = np.zeros(n_groups)
    inside = np.zeros(n_values, np.int64)
    size = bases[n_groups - 1] + 2 * widths[n_groups - 1]
    tree = np.zeros(size)  # of a group in its own unit, the leaves hold amounts
    goal = np.zeros(size)
    sums = np.zeros(n_groups)
    for j in range(n_values):
        goal[bases[groups[j]] + leaves[j]] = share[j]

    # The first window: whole items [0, k), and x tokens of item k.
    i, y = 0, 0
    k, x = 0, window
    while k < items and lengths[order[k]] <= x:
        s = order[k]
        x -= lengths[s]
        for e in range(indptr[s], indptr[s + 1]):
            inside[indices[e]] += data[e]
        k += 1
    for j in range(n_values):
        g = groups[j]
        if own_unit[g]:
            tree[bases[g] + leaves[j]] = inside[j]
        else:
            _put(tree, sums, g, bases[g], leaves[j], abs(inside[j] / window - share[j]))

    gone, come = -1, -1  # items just passed by the window's start and by its end
    at, step, since = 0, 0, 0
    while True:
        for passed in (gone, come):
            if passed >= 0:
                for e in range(indptr[passed], indptr[passed + 1]):
                    j = indices[e]
                    g = groups[j]
                    if own_unit[g]:
                        tree[bases[g] + leaves[j]] = inside[j]
                    else:
                        _put(tree, sums, g, bases[g], leaves[j], abs(inside[j] / window - share[j]))
        if x > 0 or y > 0:
            s = order[k] if x > 0 else order[i]
            tokens = float(x) if x > 0 else -float(y)
            for e in range(indptr[s], indptr[s + 1]):
                j = indices[e]
                g = groups[j]
                # data / length first: 1 for an item of one value, whose tokens then stay whole numbers.
                amount = inside[j] + (data[e] / lengths[s]) * tokens
                if own_unit[g]:
                    tree[bases[g] + leaves[j]] = amount
                else:
                    _put(tree, sums, g, bases[g], leaves[j], abs(amount / window - share[j]))
        since += 1
        if since >= n_values:
            since = 0
            for g in range(n_groups):
                sums[g] = tree[bases[g] + widths[g] : bases[g] + 2 * widths[g]].sum()

        for g in range(n_groups):
            if own_unit[g]:
                low, high = bases[g] + widths[g], bases[g] + 2 * widths[g]
                whole = tree[low:high].sum()
                most, total = 0.0, 0.0
                if whole > 0:
                    for n in range(low, high):
                        gap = abs(tree[n] / whole - goal[n])
                        most = max(most, gap)
                        total += gap
            else:
                most = tree[bases[g] + 1]
                total = sums[g]
            tv = total / 2
            if most > worst[g]:
                worst[g] = most
                start[g] = at
            worst_tv[g] = max(worst_tv[g], tv)
            area[g] += (before[g] + most) / 2 * step
            area_tv[g] += (before_tv[g] + tv) / 2 * step
            before[g] = most
            before_tv[g] = tv

        if k == items:
            break
        step = min(lengths[order[i]] - y, lengths[order[k]] - x)
        at += step
        x += step
        y += step
        gone, come = -1, -1
        if y == lengths[order[i]]:
            gone = order[i]
            y = 0
            i += 1
            for e in range(indptr[gone], indptr[gone + 1]):
                inside[indices[e]] -= data[e]
        if x == lengths[order[k]]:
            come = order[k]
            x = 0
            k += 1
            for e in range(indptr[come], indptr[come + 1]):
                inside[indices[e]] += data[e]

    for g in range(n_groups):
        if at > 0:
            area[g] /= at
            area_tv[g] /= at
        else:
            area[g] = before[g]
            area_tv[g] = before_tv[g]
    return worst, area, worst_tv, area_tv, start


@njit(cache=True, nogil=True)
def slide_documents(
    tokens: Ints, codes: NDArray[np.int32], share: Floats, window: int
) -> tuple[float, float, float, float, int]:
    """worst, mean, worst_tv, mean_tv, worst_start of one trait over all positions of the window; see `slide`.

    tokens int64 (N,), in order, at least `window` in all; codes int32 (N,) in [0, J); share float64 (J,). From one
    breakpoint to the next the window loses `step` tokens of the document at its start and gains as many of that at its
    end. O(N log J).
    """
    n_values = share.shape[0]
    width = 1
    while width < n_values:
        width *= 2
    tree = np.zeros(2 * width)
    total = np.zeros(1)
    inside = np.zeros(n_values, np.int64)
    k, left = 0, window  # the document at the window's end; tokens still to come into the first window
    while left > 0:
        take = min(left, tokens[k])
        inside[codes[k]] += take
        left -= take
        if take == tokens[k]:
            k += 1
            take = 0
    for j in range(n_values):
        _put(tree, total, 0, 0, width + j, abs(inside[j] / window - share[j]))
    out_left = tokens[0]
    in_left = tokens[k] - take if k < tokens.shape[0] else 0
    worst, worst_tv, area, area_tv = -1.0, 0.0, 0.0, 0.0
    i, at, start, step, since = 0, 0, 0, 0, 0
    before, before_tv = 0.0, 0.0
    while True:
        since += 1
        if since >= n_values:
            since = 0
            total[0] = tree[width:].sum()
        most, tv = tree[1], total[0] / 2
        if most > worst:
            worst = most
            start = at
        worst_tv = max(worst_tv, tv)
        area += (before + most) / 2 * step
        area_tv += (before_tv + tv) / 2 * step
        before, before_tv = most, tv

        while out_left == 0:
            i += 1
            out_left = tokens[i]
        while in_left == 0 and k < tokens.shape[0]:
            k += 1
            in_left = tokens[k] if k < tokens.shape[0] else 0
        if k == tokens.shape[0]:
            break
        step = min(out_left, in_left)
        at += step
        out_left -= step
        in_left -= step
        gone, come = codes[i], codes[k]
        if gone != come:
            inside[gone] -= step
            inside[come] += step
            _put(tree, total, 0, 0, width + gone, abs(inside[gone] / window - share[gone]))
            _put(tree, total, 0, 0, width + come, abs(inside[come] / window - share[come]))
    if at == 0:
        return worst, before, worst_tv, before_tv, start
    return worst, area / at, worst_tv, area_tv / at, start
