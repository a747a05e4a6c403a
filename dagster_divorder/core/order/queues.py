"""Queues: the items of each label in the order in which strategies that pick a label first hand them out.

Letters: M items, K labels. Cost: a stable sort, O(M log M).
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.problem import Problem


def queues(problem: Problem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(items int64 (M,), starts int64 (K+1,)): items[starts[k]:starts[k+1]] is label k's queue, by `within_cluster`.

    Items of equal length come at random; "length-desc" is "length-asc" backwards (as in the first seed).
    """
    labels = problem.labels
    shuffle = np.random.default_rng(problem.seed).permutation(problem.items)
    starts = np.concatenate([[0], np.cumsum(np.bincount(labels))])
    if problem.within_cluster == "original":
        return np.argsort(labels, kind="stable"), starts
    if problem.within_cluster == "random":
        return shuffle[np.argsort(labels[shuffle], kind="stable")], starts
    items = shuffle[np.lexsort((problem.lengths[shuffle], labels[shuffle]))]
    if problem.within_cluster == "length-asc":
        return items, starts
    sizes = np.diff(starts).repeat(np.diff(starts))
    first = starts[:-1].repeat(np.diff(starts))
    rank = np.arange(len(items)) - first
    from_end = sizes - 1 - rank
    moved = np.empty_like(items)
    if problem.within_cluster == "length-desc":
        moved[first + from_end] = items
    else:
        # Riffled: the short half takes the even places, the long half, from the longest down, the odd ones.
        moved[first + np.where(rank <= from_end, 2 * rank, 2 * from_end + 1)] = items
    return moved, starts
