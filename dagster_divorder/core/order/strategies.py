"""The strategies by name."""

from __future__ import annotations

from dagster_divorder.core.order import balanced, grid_shuffle
from dagster_divorder.core.order.baselines import BASELINES
from dagster_divorder.core.order.block_shuffle import shuffling_batches_of
from dagster_divorder.core.order.greedy import EXACT
from dagster_divorder.core.order.strategy import Strategy

_SIMPLE = {
    strategy.name: strategy
    for strategy in (
        *BASELINES,
        grid_shuffle.STRATEGY,
        balanced.STRATEGY,
        *EXACT,
    )
}
STRATEGIES: dict[str, Strategy] = {
    **_SIMPLE,
    "block_shuffle": shuffling_batches_of(_SIMPLE),
}
