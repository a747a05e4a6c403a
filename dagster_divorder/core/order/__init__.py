"""Orders of items (documents or packed sequences) in which every window carries the whole's own mix of traits.

Letters: M items, J trait values, G groups, K labels (values of group 0 in use), C candidates, nnz stored entries.

An item is a sparse row of counts over trait values (clusters, length bins, sources, ...); each trait's values form a
group. A strategy is a value (`Strategy`): a function, whose docstring states what it guarantees, and its options.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dagster_divorder.core.order.items import Items
from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategies import STRATEGIES, make_problem
from dagster_divorder.core.order.strategy import Strategy

__all__ = ["STRATEGIES", "Items", "Order", "Problem", "Strategy", "order"]


def order(items: Items, **arguments: Any) -> Order:
    """Permutation of the M items, int64 (M,): output position -> item.

    An item's length is its sum in group 0; its label, for strategies that need one, is its largest value in group 0.
    strategy: a key of STRATEGIES, by default "balanced". Its own options are arguments too, such as f2_lambda for `f2`;
        see `Strategy.Options`.
    seed: >= 0, of every random choice, by default 0.
    batch: items a block, for `block_shuffle`, by default 256.

    Items that look equal to a strategy come in random order. The same arguments give the same bytes. M = 0 gives an
    empty array.

    Raises:
        InputError: the strategy or an option cannot be used, or the counts are too large to sum.
    """
    problem, strategy = make_problem(items, **arguments)
    return strategy.permute(problem) if problem.items else np.zeros(0, np.int64)
