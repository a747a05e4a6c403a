"""round_robin: one item of each label in turn, in label order; labels that have run out are skipped.

Guarantee: as long as all labels last, every K consecutive items show every label.
Cost: one sort, O(M log M). Source: the first seed's baseline.
Known weakness: small labels run out early, and the tail is what is left of the largest.
"""

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.queues import queues


def place(problem: Problem) -> Order:
    items, starts = queues(problem)
    sizes = np.diff(starts)
    turn = np.arange(len(items)) - starts[:-1].repeat(sizes)
    # Queues lie in label order, and the sort is stable: inside a turn the labels rise.
    return items[np.argsort(turn, kind="stable")]
