"""Slow, obvious twin of `order_buffer.pass_through`: it follows an order, and says by how much a better item was held.
For tests only."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels.order_buffer import (
    MOST,
    MOST_WAIT,
    NORM_CLASSES,
    SELF_WEIGHT,
    empty_buffer,
)

Floats = NDArray[np.float64]


def largest_regret(
    order: Sequence[int],
    rows: Floats,
    groups: Sequence[int],
    weights: Sequence[float],
    capacity: int,
) -> float:
    """Items come as 0, 1, 2, ...; rows (M, J), whose first NORM_CLASSES columns, of norms, are empty. How far
    a score was above the least one held, over the size of its terms; infinite where the oldest had to go and did not.
    """
    rows, group, weight = rows.copy(), np.array(groups), np.array(weights)
    keep = empty_buffer(capacity, [1.0], 0).keep
    n_groups, count = len(weight), len(rows)
    held: list[int] = []
    classed: set[int] = set()
    sizes: list[float] = []
    deviation = np.zeros(rows.shape[1])
    coming, worst = 0, 0.0

    def by_group(values: Floats) -> Floats:
        return np.bincount(group, values, n_groups)

    def share_of(items: Sequence[int]) -> Floats:
        total = rows[list(items)].sum(axis=0)
        sums = by_group(total)[group]
        return np.divide(total, sums, out=np.full(len(total), np.nan), where=sums > 0)

    for gone, item in enumerate(order):
        while len(held) < capacity and coming < count:
            held.append(coming)
            coming += 1
        mixed = np.nan_to_num(share_of(range(coming)))
        own = share_of(held)
        room = 1.0 if len(held) < capacity else MOST
        at_most = np.where(np.isnan(own), mixed, room * own)
        shares = np.minimum(mixed, at_most)
        beyond = np.maximum(at_most - mixed, 0)
        left = (1 - by_group(shares))[group]
        shares += np.divide(left * beyond, by_group(beyond)[group], out=np.zeros(len(own)), where=beyond > 0)
        fresh = [one for one in held if one not in classed]
        norm_of = {}
        for one in fresh:
            centred = rows[one] - shares * by_group(rows[one])[group]
            square = float((weight[group] * centred**2).sum())
            norm_of[one] = (
                math.sqrt(square) if square > 1e-12 * (weight[group] * rows[one] ** 2).sum() else 0.0
            )
            sizes.append(norm_of[one])
        unit = rows[:coming][:, group == 0].sum() / coming
        for one in fresh:
            mean = sum(sizes) / len(sizes)
            of_mean = 2 * math.log2(norm_of[one] / mean) if norm_of[one] > 0 else -math.inf
            number = int(min(max(np.rint(of_mean) + NORM_CLASSES // 2, 0), NORM_CLASSES - 1))
            rows[one, number] = unit
        classed.update(fresh)
        if gone >= min(held) + MOST_WAIT * capacity:
            if item != min(held):
                return math.inf
        else:
            scores = {}
            for one in held:
                centred = rows[one] - shares * by_group(rows[one])[group]
                scores[one] = float(
                    (weight[group] * (deviation + 0.5 * SELF_WEIGHT * centred) * centred).sum()
                )
            terms = np.abs(deviation).max() + rows[held].max()
            worst = max(worst, (scores[item] - min(scores.values())) / (terms * rows[held].max() or 1.0))
        held.remove(item)
        deviation = keep * deviation + rows[item] - shares * by_group(rows[item])[group]
    return worst
