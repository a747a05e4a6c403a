"""Runs: items sorted by (label, length), so that the item of label k nearest to length x is a search away.

Letters: M items, R runs (distinct pairs of label and length), K labels. Cost: a sort, O(M log M).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.problem import Problem


class Runs(NamedTuple):
    """items int64 (M,): places in a shuffle, sorted; run r is items[first[r]:first[r+1]], rising, so that of equal
    items the first is a random one; all have `lengths[r]` tokens.

    first int64 (R+1,); lengths int64 (R,), rising inside a label; label k owns the runs of_label[k]:of_label[k+1].
    """

    items: NDArray[np.int64]
    first: NDArray[np.int64]
    lengths: NDArray[np.int64]
    of_label: NDArray[np.int64]


def runs(problem: Problem) -> tuple[Runs, NDArray[np.int64]]:
    """(the runs; the shuffle, int64 (M,): which item is at each of its places)."""
    shuffle = np.random.default_rng(problem.seed).permutation(problem.items)
    labels, lengths = problem.labels[shuffle], problem.lengths[shuffle]
    items = np.lexsort((lengths, labels))
    label, length = labels[items], lengths[items]
    starts = np.flatnonzero(np.r_[True, (label[1:] != label[:-1]) | (length[1:] != length[:-1])])
    of_label = np.searchsorted(label[starts], np.arange(label[-1] + 2))
    return Runs(items, np.r_[starts, len(items)], length[starts], of_label), shuffle
