"""Orders of items (documents or packed sequences) in which every window carries the whole's own mix of traits.

Letters: M items, J trait values, G groups, K labels (values of group 0 in use), C candidates, nnz stored entries.

An item is a sparse row of counts over trait values (clusters, length bins, sources, ...); each trait's values form a
group. A strategy is a value (`Strategy`): a function, whose docstring states what it guarantees, and its options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dagster_divorder.core.order.arguments import make_problem
from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategies import STRATEGIES
from dagster_divorder.core.order.strategy import Strategy

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

__all__ = ["STRATEGIES", "Order", "Problem", "Strategy", "order"]


def order(counts: csr_matrix | csr_array, groups: ArrayLike, **arguments: Any) -> Order:
    """Permutation of the M items, int64 (M,): output position -> item.

    counts: SciPy CSR (M, J), item x trait value, finite and >= 0, in tokens or documents. Stored zeros are kept.
    groups: int (J,), the group 0..G-1 of each trait value, none empty. Each group has its own running total, so one may
        count tokens and another documents. An item's length is its sum in group 0; its label, for strategies that need
        one, is its largest value in group 0.
    strategy: a key of STRATEGIES, by default "balanced". Its own options are arguments too, such as f2_lambda for `f2`;
        see `Strategy.Options`.
    weights: (G,), > 0, the importance of each group, in squared units of its counts; equal by default. For `balanced`
        and `f3`.
    seed: >= 0, of every random choice, by default 0.
    sequence_length: tokens a bin, for `bin_packing`. batch: items a block, for `block_shuffle`, by default 256.
    coordinates: signed numbers (M, D), such as an item's mean vector times its tokens. Every prefix should have its
        share of their sum, by token. A coordinate counts like a trait value of weight 1, in the unit of `counts`; scale
        it to change its weight. For strategies with `takes_coordinates`.

    Items that look equal to a strategy come in random order. The same arguments give the same bytes. M = 0 gives an
    empty array.

    Raises:
        InputError: the strategy or an option cannot be used, or the counts are too large to sum.
    """
    problem, strategy = make_problem(counts, groups, **arguments)
    return strategy.permute(problem) if problem.items else np.zeros(0, np.int64)
