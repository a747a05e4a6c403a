"""Exact greedy over all remaining items, for `f1`, `f2` and `f3`: each step takes the item of the smallest deviation.

Guarantee: exact within rounding; of equal items the first goes. No choice by chance. With targets or a frozen prefix
the deviation is that from where the path or the whole's mix wants the totals at this point.
Cost: O(M^2) time with a small constant (a few features an item and step, and the entries that meet), O(nnz + J) memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.targets import target_path

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.order_greedy import Rows


def exact(problem: Problem, rows: Rows, ahead: float = 0.0) -> Order:
    """rows: the problem's own, or with other weights or `pace`; ahead: the pace of what is placed."""
    from dagster_divorder.core.kernels.order_greedy import best_of_pool, classes_of

    classes = classes_of(rows, problem.placed.values, problem.whole.values)
    items = np.arange(problem.items)
    path = target_path(problem)
    return best_of_pool(
        items, rows, path, classes, problem.placed.values, ahead, len(items), 1.0, 0, len(items)
    )
