"""Exact greedy over all remaining items, for `f1`, `f2` and `f3`: each step takes the item of the smallest deviation.

Guarantee: exact within rounding; of equal items a random one goes, by the seed. With targets or a frozen prefix
the deviation is that from where the path or the whole's mix wants the totals at this point.
Cost: O(M^2) time with a small constant (a few features an item and step, and the entries that meet), O(nnz + J) memory.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.targets import target_path


def exact(problem: Problem) -> Order:
    from dagster_divorder.core.kernels.order_greedy import best_of_pool, classes_of

    rows, placed = problem.rows(), problem.placed
    classes = classes_of(rows, placed.values, problem.whole.values)
    items = np.random.default_rng(problem.seed).permutation(problem.items)
    path = target_path(problem)
    return best_of_pool(
        items, rows, path, classes, placed.values, placed.dense, len(items), 1.0, 0, len(items)
    )
