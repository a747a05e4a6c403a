"""Slow, obvious twins of the order kernels and of whole strategies: plain loops, dense rows. For tests only."""

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import assume
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# From the totals (J,) to (X (J,), sigma (J,)): what they are to be, and the shares asked for at this point.
Wanted = Callable[[Floats], tuple[Floats, Floats]]
# Values near 1 that differ by less are equal but for rounding.
TIE = 1e-9


def exact_or_clear(differences: Floats, zero: float) -> Floats:
    """Drops the example if some difference is neither nothing, which is `zero` and less, nor beyond what the kernels
    take for rounding: they round raw sums of some 10,000, where the twins round what is left of them."""
    assume(not ((np.abs(differences) > zero) & (np.abs(differences) < 1e-4)).any())
    return differences


def label_queues(labels: Sequence[int]) -> list[list[int]]:
    """The items of each label, in their order."""
    return [[item for item, of in enumerate(labels) if of == label] for label in sorted(set(labels))]


def round_robin(queues: list[list[int]]) -> list[int]:
    waiting = [list(queue) for queue in queues]
    out = []
    while any(waiting):
        out += [queue.pop(0) for queue in waiting if queue]
    return out


def largest_deficit_first(queues: list[list[int]], sizes: Sequence[int]) -> list[int]:
    """The formula of Diversity-Ordered Training, sizes by item; an emptied queue takes no further part."""
    waiting = [list(queue) for queue in queues]
    out: list[int] = []
    while any(waiting):
        left = [sum(sizes[item] for item in queue) for queue in waiting]
        gone = [sum(sizes[item] for item in out if item in queue) for queue in queues]
        deficits = {
            k: left[k] / max(sum(left), 1) - gone[k] / max(sum(gone), 1)
            for k in range(len(queues))
            if waiting[k]
        }
        best = max(deficits, key=lambda k: (deficits[k], -k))
        out.append(waiting[best].pop(0))
    return out


def token_share_greedy(labels: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """argmin |(T_c + l) - tau_c (S + l)| over all remaining items, in Python's exact whole numbers."""
    total = sum(lengths)
    share = {
        label: sum(n for n, of in zip(lengths, labels, strict=True) if of == label) for label in set(labels)
    }
    placed = dict.fromkeys(share, 0)
    remaining = set(range(len(lengths)))
    out = []
    while remaining:

        def deviation(item: int) -> tuple[int, int]:
            label, length = labels[item], lengths[item]
            return abs(
                (placed[label] + length) * total - share[label] * (sum(placed.values()) + length)
            ), item

        best = min(remaining, key=deviation)
        remaining.remove(best)
        placed[labels[best]] += lengths[best]
        out.append(best)
    return out


def bin_packing(labels: Sequence[int], lengths: Sequence[int], bin_size: int) -> list[int]:
    remaining = set(range(len(lengths)))
    out: list[int] = []
    while remaining:
        inside: set[int] = set()
        room = bin_size
        fits = remaining
        while fits:
            lacked = {item for item in fits if labels[item] not in inside}
            best = min(lacked or fits, key=lambda item: (-lengths[item], item))
            remaining.remove(best)
            out.append(best)
            inside.add(labels[best])
            room -= lengths[best]
            fits = {item for item in remaining if lengths[item] <= room}
    return out


def centred(rows: Floats, groups: Sequence[int]) -> Floats:
    """Rows (M, J) minus their group sums times the shares of the whole."""
    out = np.array(rows, np.float64)
    for group in set(groups):
        columns = np.flatnonzero(np.asarray(groups) == group)
        sums = rows[:, columns].sum(axis=0)
        if sums.sum() > 0:
            # Of the same sums, so that a group of one value is centred to nothing, and not to rounding.
            share = sums / sums.sum()
            out[:, columns] -= rows[:, columns].sum(axis=1, keepdims=True) * share
    return out


def sign_pass(items: Sequence[int], rows: Floats) -> list[int]:
    """Centred rows (M, J), with any further coordinates: plus rows in order, then minus rows reversed."""
    front, back = signed(items, rows)
    return front + back[::-1]


def signed(items: Sequence[int], rows: Floats) -> tuple[list[int], list[int]]:
    """(Plus rows, minus rows), each as they come."""
    running = np.zeros(rows.shape[1])
    front: list[int] = []
    back: list[int] = []
    for item in items:
        if exact_or_clear(running @ rows[item], 1e-12) <= 1e-12:
            front.append(item)
            running += rows[item]
        else:
            back.append(item)
            running -= rows[item]
    return front, back


def group_sums(values: Floats, groups: Sequence[int]) -> Floats:
    """Of (..., J) values, each group's sum in the place of every one of its values."""
    of = np.asarray(groups)
    return np.stack([values[..., of == group].sum(axis=-1) for group in of], axis=-1)


def straight(whole: Floats, groups: Sequence[int]) -> Wanted:
    """The mix of the whole: X = tau S."""
    sums = group_sums(whole, groups)
    tau = np.divide(whole, sums, out=np.zeros(len(whole)), where=sums > 0)
    return lambda totals: (tau * group_sums(totals, groups), tau)


def moving(progress: Floats, shares: Floats, whole: Floats, groups: Sequence[int]) -> Wanted:
    """A fitted table: X = W_g integral of sigma up to p, and sigma for what the group has beyond p W_g."""
    of, sums = np.asarray(groups), group_sums(whole, groups)
    first = int(np.argmax(of == 0))

    def wanted(totals: Floats) -> tuple[Floats, Floats]:
        now = group_sums(totals, groups)
        p = now[first] / sums[first]
        sigma = np.array([np.interp(p, progress, column) for column in shares.T])
        knots = np.append(progress[progress < p], p)
        values = np.stack([np.interp(knots, progress, column) for column in shares.T])
        integral = 0.5 * ((values[:, 1:] + values[:, :-1]) * np.diff(knots)).sum(axis=1)
        return sums * integral + sigma * (now - p * sums), sigma

    return wanted


def best_of_pool(
    queue: Sequence[int],
    rows: Floats,
    groups: Sequence[int],
    weights: Floats,
    wanted: Wanted,
    *,
    pool: int,
    self_weight: float = 1.0,
    fixed: int = 0,
    placed: Floats | None = None,
    dense: Floats | None = None,
    dense_placed: Floats | None = None,
) -> list[int]:
    """Raw rows (M, J), dense ones (M, D); the score is <D, a> + self_weight |a|^2 / 2 with D = T - X and
    a = c - sigma l."""
    coming = list(queue)
    held: list[int] = []
    out: list[int] = []
    size = min(max(pool, fixed), len(coming))
    totals = np.zeros(rows.shape[1]) if placed is None else placed.copy()
    signed = np.zeros((len(rows), 0)) if dense is None else dense
    so_far = signed[:0].sum(axis=0) if dense_placed is None else dense_placed.copy()
    scale = weights[np.asarray(groups)]
    while coming or held:
        if len(held) <= size - max(1, size // 4):
            more = size - len(held)
            held, coming = held + coming[:more], coming[more:]
        x, sigma = wanted(totals)
        scores = {}
        for item in held:
            a = rows[item] - sigma * group_sums(rows[item], groups)
            scores[item] = float((scale * a * (totals - x + 0.5 * self_weight * a)).sum())
            scores[item] += float((signed[item] * (so_far + 0.5 * self_weight * signed[item])).sum())
        above = exact_or_clear(np.array(list(scores.values())) - min(scores.values()), TIE)
        best = held[int(np.flatnonzero(above <= TIE)[0])]
        if len(out) < fixed:
            best = queue[len(out)]
        held.remove(best)
        totals += rows[best]
        so_far += signed[best]
        out.append(best)
    return out


def f1(
    rows: Floats, groups: Sequence[int], placed: Floats, wanted: Callable[[Floats], Wanted], left: list[int]
) -> list[int]:
    """The first objective of Don't Shuffle, Optimize over the items `left`, of equal ones the first, after `placed`;
    group 0 alone. `wanted` makes the path from the whole's totals."""
    kept = np.asarray(groups) == 0
    return f3(rows[:, kept], [0] * int(kept.sum()), np.ones(1), placed[kept], wanted, left)


def f2(
    rows: Floats,
    groups: Sequence[int],
    placed: list[int],
    wanted: Callable[[Floats], Wanted],
    left: list[int],
    lambda_: float,
) -> list[int]:
    """The second: `placed` are items."""
    kept = np.asarray(groups) == 0
    first = rows[:, kept]
    norms = np.sqrt((first**2).sum(axis=1))
    by_token = norms.sum() / first.sum() if first.sum() > 0 else 0.0
    # As exact as dense coordinates are.
    excess = (np.sqrt(lambda_) * (norms - by_token * first.sum(axis=1))).astype(np.float32).astype(np.float64)
    so_far = np.sqrt(lambda_) * (norms[placed].sum() - by_token * first[placed].sum())
    path = wanted(first.sum(axis=0))
    before, out, remaining = list(placed), [], list(left)
    while remaining:
        totals = first[before].sum(axis=0)
        x, sigma = path(totals)

        def objective(
            item: int, totals: Floats = totals, x: Floats = x, sigma: Floats = sigma, so_far: float = so_far
        ) -> float:
            off = totals + first[item] - x - sigma * first[item].sum()
            return float((off**2).sum() + (so_far + excess[item]) ** 2)

        best = first_of_least(remaining, objective)
        so_far += excess[best]
        before.append(best)
        remaining.remove(best)
        out.append(best)
    return out


def f3(
    rows: Floats,
    groups: Sequence[int],
    weights: Floats,
    placed: Floats,
    wanted: Callable[[Floats], Wanted],
    left: list[int],
) -> list[int]:
    """The third, over any groups."""
    scale, path = weights[np.asarray(groups)], wanted(rows.sum(axis=0))
    totals, out, remaining = placed.copy(), [], list(left)
    while remaining:
        x, sigma = path(totals)

        def objective(item: int, totals: Floats = totals, x: Floats = x, sigma: Floats = sigma) -> float:
            off = totals + rows[item] - x - sigma * group_sums(rows[item], groups)
            return float((scale * off**2).sum())

        best = first_of_least(remaining, objective)
        totals += rows[best]
        remaining.remove(best)
        out.append(best)
    return out


def first_of_least(items: Sequence[int], objective: Callable[[int], float]) -> int:
    values = {item: objective(item) for item in items}
    least = min(values.values())
    return next(item for item, value in values.items() if value <= least + TIE * max(1.0, least))


def deal_to_segments(
    queue: Sequence[int],
    rows: Floats,
    groups: Sequence[int],
    weights: Floats,
    dense: Floats,
    wanted: Floats,
) -> list[int]:
    """dense (M, D), wanted (J, P). The segment of each item of the queue."""
    scale = weights[np.asarray(groups)]
    total = group_sums(wanted.sum(axis=1), groups)
    dealt, held = np.zeros(rows.shape[1]), np.zeros_like(wanted)
    dense_held = np.zeros((dense.shape[1], wanted.shape[1]))
    out: list[int] = []
    for item in queue:
        dealt = dealt + group_sums(rows[item], groups)
        share = np.divide(dealt, total, out=np.zeros_like(dealt), where=total > 0)
        scores = (scale * rows[item]) @ (held - share[:, np.newaxis] * wanted) + dense[item] @ dense_held
        best = int(np.flatnonzero(scores <= scores.min() + TIE)[0])
        held[:, best] += rows[item]
        dense_held[:, best] += dense[item]
        out.append(best)
    return out
