"""Deals the rows of a global batch to ranks, so that ranks wait less for each other.

The gradient of a batch does not depend on which rank reads a row, or when. So a batch keeps its rows, and the order of
training stays; only the rank and the micro-step of a row change. At a micro-step every rank waits for the slowest.

Letters: B rows of a global batch, W ranks, b rows that a rank reads at once, M micro-steps; B = M W b.
Method: rows of near cost share a micro-step; inside it the most expensive row goes to the least loaded rank with room
(Graham 1969, Bounds on multiprocessing timing anomalies: longest processing time first). Rows that are padded to the
longest of their rank's micro-batch go to ranks by falling length instead, since a short row beside a long one costs as
much as a long one.
Guarantee: the same deal for the same costs. Cost: O(B log B), some two microseconds a row.
Known weakness: with one row a rank and micro-step (b = 1), ranks differ as neighbours in the sorted batch do.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray


def deal_to_ranks(costs: ArrayLike, ranks: int, micro: int, *, padded: bool = False) -> NDArray[np.int64]:
    """The rows that each rank reads at each micro-step, int64 (M, W, b): a permutation of 0 to B - 1.

    costs: of each row, (B,), 0 or more; B is a multiple of W b. padded: rows are padded to the longest of a rank's
    micro-batch, and costs are their lengths. Ties go by row, then by rank.
    """
    cost = np.asarray(costs, np.float64)
    sorted_rows = np.argsort(-cost, kind="stable").reshape(-1, ranks, micro)
    if padded or micro == 1:
        return sorted_rows
    return np.stack([_least_loaded(rows.ravel(), cost, ranks, micro) for rows in sorted_rows])


def arranged(
    costs: ArrayLike,
    ranks: int,
    micro: int,
    shares: Literal["micro-batches", "rows"],
    *,
    padded: bool = False,
) -> NDArray[np.int64]:
    """The rows of a batch in the order in which a trainer has to read them, int64 (B,), see `deal_to_ranks`. shares:
    what of the W b rows of a micro-step the trainer gives to each rank in turn: b consecutive rows, or one."""
    dealt = deal_to_ranks(costs, ranks, micro, padded=padded)
    return (dealt if shares == "micro-batches" else dealt.transpose(0, 2, 1)).reshape(-1)


def _least_loaded(
    rows: NDArray[np.int64], cost: NDArray[np.float64], ranks: int, micro: int
) -> NDArray[np.int64]:
    """The rows of a micro-step, (W b,) by falling cost, dealt to its ranks, (W, b)."""
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0.0, rank) for rank in range(ranks)]
    heapify(loads)
    for row, its_cost in zip(rows.tolist(), cost[rows].tolist(), strict=True):
        load, rank = loads[0]
        dealt[rank].append(row)
        if len(dealt[rank]) < micro:
            heapreplace(loads, (load + its_cost, rank))
        else:
            heappop(loads)
    return np.array(dealt, np.int64)


def slowest_rank(costs: ArrayLike, ranks: int, micro: int, *, padded: bool = False) -> float:
    """The cost of the slowest rank over the mean rank's, averaged over micro-steps; 1.0 if no rank waits.

    costs: of rows in reading order, (n,); rows behind the last whole micro-step are ignored. padded: see
    `deal_to_ranks`.
    """
    cost = np.asarray(costs, np.float64)
    steps = cost[: len(cost) // (ranks * micro) * ranks * micro].reshape(-1, ranks, micro)
    loads = steps.max(2) if padded else steps.sum(2)
    means = loads.mean(1)
    return float(np.mean(loads.max(1)[means > 0] / means[means > 0])) if means.any() else 1.0
