"""The strategies by name; the problem and the strategy that the arguments of an order describe."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.order import balanced
from dagster_divorder.core.order.baselines import BASELINES
from dagster_divorder.core.order.greedy import BLOCK_SHUFFLE, EXACT
from dagster_divorder.core.order.items import Items
from dagster_divorder.core.order.problem import Problem
from dagster_divorder.core.order.strategy import Strategy, one_of
from dagster_divorder.core.rows import SparseItems
from dagster_divorder.errors import InputError

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (*BASELINES, balanced.STRATEGY, *EXACT, BLOCK_SHUFFLE)
}
# So that sums of two totals, and their signed differences, stay inside int64.
LARGEST_TOTAL = 2**62


def make_problem(
    items: Items,
    *,
    strategy: str = "balanced",
    seed: int = 0,
    batch: int = 256,
    **options: Any,
) -> tuple[Problem, Strategy]:
    """(the items to order, the strategy with its options), from the arguments of `order`.

    Raises:
        InputError: the strategy or an option cannot be used, or the counts are too large to sum.
    """
    chosen = STRATEGIES[one_of("strategy", strategy, STRATEGIES)].with_options(**options)
    counts, dense = items.counts, items.coordinates
    if not counts.has_canonical_format:
        counts = counts.copy()
        counts.sum_duplicates()
    data = counts.data
    if (total := float(data.sum(dtype=np.float64))) >= LARGEST_TOTAL:
        raise InputError(
            f"counts sums to {total:.3g}; expected less than 2**62: use a coarser unit than tokens"
        )
    if data.dtype not in (np.int32, np.int64, np.float64):
        data = data.astype(np.float64 if data.dtype.kind == "f" else np.int64)
    rows = SparseItems(
        indptr=counts.indptr.astype(np.int64, copy=False),
        indices=counts.indices.astype(np.int32, copy=False),
        data=data,
        groups=np.asarray(items.groups, np.int32),
        weights=items.weights,
        dense=np.zeros((counts.shape[0], 0), np.float32) if dense is None else dense,
    )
    problem = Problem(
        rows=rows,
        seed=whole_number("seed", seed, 0),
        batch=whole_number("batch", batch, 1),
    ).recentred()
    return problem.with_norms() if chosen.balances_norms else problem, chosen
