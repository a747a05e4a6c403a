"""stratified: the first seed's greedy. The next item comes from the label that is furthest behind, counted in items.

deficit_k = remaining_k / remaining - placed_k / max(placed, 1); the largest goes next, of equal ones the lowest label.
Guarantee: at every point each label's share of the items placed is near its share of all, within a few items.
Cost: O(M K). Source: the first seed ("Diversity-Ordered Training"); equal to its float64 formula bit for bit.
Known weakness: items count alike, but sequences are made of tokens: where labels differ in item length, batches drift
further from the whole's mix than under a shuffle.
"""

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.queues import queues


def place(problem: Problem) -> Order:
    from dagster_divorder.core.kernels.order_deficit import largest_deficit_first

    items, starts = queues(problem)
    return items[largest_deficit_first(starts, np.ones(len(items), np.int64))]
