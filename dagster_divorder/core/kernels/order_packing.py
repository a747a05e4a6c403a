"""Items into bins, largest first, each bin preferring labels it lacks, for `bin_packing`."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dagster_divorder.core.kernels.order_runs import open_at_or_below, take

Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def largest_that_fits(items: Ints, first: Ints, lengths: Ints, of_label: Ints, bin_size: int) -> Ints:
    """The order, int64 (M,). First four arguments as in `core.order.runs.Runs`; none is written.

    `cursor[k]` is label k's largest open run that fits the open bin (below of_label[k]: none). Room only shrinks
    while a bin is open, so cursors only fall. O(M (K + log M)) time, O(M) memory.
    """
    runs = lengths.shape[0]
    labels = of_label.shape[0] - 1
    below = np.arange(runs + 1)
    above = np.arange(runs + 1)
    head = first[:-1].copy()
    cursor = np.empty(labels, np.int64)
    in_bin = np.zeros(labels, np.int64)
    out = np.empty(items.shape[0], np.int64)
    serial = 0
    room = -1
    t = 0
    while t < out.shape[0]:
        if room < 0:
            serial += 1
            for k in range(labels):
                cursor[k] = of_label[k + 1] - 1
        best = -1
        best_lacked = False
        best_label = -1
        for k in range(labels):
            if cursor[k] >= of_label[k] and room >= 0 and lengths[cursor[k]] > room:
                fits, stop = of_label[k], cursor[k]
                while fits < stop:
                    middle = (fits + stop) // 2
                    if lengths[middle] <= room:
                        fits = middle + 1
                    else:
                        stop = middle
                cursor[k] = fits - 1
            if cursor[k] < of_label[k]:
                continue
            r = cursor[k] = open_at_or_below(below, cursor[k])
            if r < of_label[k]:
                continue
            lacked = in_bin[k] < serial
            if best < 0 or lacked > best_lacked:
                better = True
            elif lacked < best_lacked:
                better = False
            else:
                better = lengths[r] > lengths[best] or (
                    lengths[r] == lengths[best] and items[head[r]] < items[head[best]]
                )
            if better:
                best, best_lacked, best_label = r, lacked, k
        if best < 0:
            room = -1
            continue
        out[t] = items[take(best, head, first, below, above)]
        t += 1
        in_bin[best_label] = serial
        room = (bin_size if room < 0 else room) - lengths[best]
    return out
