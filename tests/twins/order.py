"""Slow, obvious twins of the order kernels and of whole strategies: plain loops, dense rows. For tests only."""

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import assume
from numpy.typing import NDArray

Floats = NDArray[np.float64]
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


def largest_deficit_first(queues: list[list[int]]) -> list[int]:
    """The formula of Diversity-Ordered Training; an emptied queue takes no further part."""
    waiting = [list(queue) for queue in queues]
    out: list[int] = []
    while any(waiting):
        left = [len(queue) for queue in waiting]
        gone = [len(queue) - of for queue, of in zip(queues, left, strict=True)]
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
    return front + back[::-1]


def group_sums(values: Floats, groups: Sequence[int]) -> Floats:
    """Of (..., J) values, each group's sum in the place of every one of its values."""
    of = np.asarray(groups)
    return np.stack([values[..., of == group].sum(axis=-1) for group in of], axis=-1)


def share_of(whole: Floats, groups: Sequence[int]) -> Floats:
    """The mix of the whole: each value's share of its group."""
    sums = group_sums(whole, groups)
    return np.divide(whole, sums, out=np.zeros(len(whole)), where=sums > 0)


def best_of_pool(
    queue: Sequence[int],
    rows: Floats,
    groups: Sequence[int],
    weights: Floats,
    share: Floats,
    *,
    pool: int,
    self_weight: float = 1.0,
    fixed: int = 0,
    dense: Floats | None = None,
    dense_placed: Floats | None = None,
) -> list[int]:
    """Raw rows (M, J), dense ones (M, D); the score is <D, a> + self_weight |a|^2 / 2 with D = T - sigma S and
    a = c - sigma l; sigma is `share`."""
    coming = list(queue)
    held: list[int] = []
    out: list[int] = []
    size = min(max(pool, fixed), len(coming))
    totals = np.zeros(rows.shape[1])
    signed = np.zeros((len(rows), 0)) if dense is None else dense
    so_far = signed[:0].sum(axis=0) if dense_placed is None else dense_placed.copy()
    scale = weights[np.asarray(groups)]
    while coming or held:
        if len(held) <= size - max(1, size // 4):
            more = size - len(held)
            held, coming = held + coming[:more], coming[more:]
        deviation = totals - share * group_sums(totals, groups)
        scores = {}
        for item in held:
            a = rows[item] - share * group_sums(rows[item], groups)
            scores[item] = float((scale * a * (deviation + 0.5 * self_weight * a)).sum())
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


def f1(rows: Floats, groups: Sequence[int], left: list[int]) -> list[int]:
    """The first objective of Don't Shuffle, Optimize over the items `left`, of equal ones the first; group 0 alone."""
    kept = np.asarray(groups) == 0
    return f3(rows[:, kept], [0] * int(kept.sum()), np.ones(1), left)


def f2(rows: Floats, groups: Sequence[int], left: list[int], lambda_: float) -> list[int]:
    """The second: the norms as one more group's deviation."""
    first = rows[:, np.asarray(groups) == 0]
    norms = np.sqrt((first**2).sum(axis=1))
    by_token = norms.sum() / first.sum() if first.sum() > 0 else 0.0
    # As exact as dense coordinates are.
    excess = (np.sqrt(lambda_) * (norms - by_token * first.sum(axis=1))).astype(np.float32)
    return f3(first, [0] * first.shape[1], np.ones(1), left, excess.astype(np.float64)[:, np.newaxis])


def f3(
    rows: Floats, groups: Sequence[int], weights: Floats, left: list[int], dense: Floats | None = None
) -> list[int]:
    """The third, over any groups; dense (M, D): further coordinates, whose sums are to be 0."""
    scale, centred_rows = weights[np.asarray(groups)], centred(rows, groups)
    dense = np.zeros((len(rows), 0)) if dense is None else dense
    out: list[int] = []
    while len(out) < len(left):

        def objective(item: int) -> float:
            off = centred_rows[[*out, item]].sum(axis=0)
            return float((scale * off**2).sum() + (dense[[*out, item]].sum(axis=0) ** 2).sum())

        out.append(first_of_least([item for item in left if item not in out], objective))
    return out


def first_of_least(items: Sequence[int], objective: Callable[[int], float]) -> int:
    values = {item: objective(item) for item in items}
    least = min(values.values())
    return next(item for item, value in values.items() if value <= least + TIE * max(1.0, least))


def strayed(
    part: Sequence[int],
    documents: Sequence[int],
    tokens: NDArray[np.int64],
    codes: NDArray[np.int32],
    weights: Floats,
    document_weight: float,
    reached: Floats,
) -> float:
    """How far prefixes stray that end with a part: the sum over seams and trait values of the squared deviation, in
    tokens and in documents. part[i] is where documents[i] went; codes (T, N) number all values, and one more value is
    everyone's. weights: by value. reached (N, P): the share of a document that is to lie in each part or an earlier
    one."""
    values, found = codes.max(initial=-1) + 2, 0.0
    for counted, factor in ((tokens, 1.0), (np.ones_like(tokens), document_weight)):
        off = np.zeros((values, reached.shape[1]))
        for at, document in zip(part, documents, strict=True):
            is_there = np.arange(reached.shape[1]) >= at
            for value in (*codes[:, document], values - 1):
                off[value] += counted[document] * (is_there - reached[document])
        found += factor * float(weights @ (off**2).sum(axis=1))
    return found
