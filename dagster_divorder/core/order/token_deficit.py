"""token_deficit: `stratified` with tokens instead of items: remaining token share minus placed token share.

Guarantee: at every point each label's share of the tokens placed is near its share of all, within a few of the longest
items. Cost: O(M K). Source: the first seed's rule, measured in what sequences are made of.
Known weakness: labels of long items are served rarely, so sequences hold fewer labels than under `stratified`; and the
length of the items is not balanced at all.
"""

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.queues import queues


def place(problem: Problem) -> Order:
    from dagster_divorder.core.kernels.order_deficit import largest_deficit_first

    items, starts = queues(problem)
    return items[largest_deficit_first(starts, problem.lengths[items])]
