"""The strategies by name."""

from __future__ import annotations

from dagster_divorder.core.order import balanced, balanced_buffer, block_shuffle, grid_shuffle
from dagster_divorder.core.order.baselines import BASELINES
from dagster_divorder.core.order.greedy import EXACT
from dagster_divorder.core.order.strategy import Strategy

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        *BASELINES,
        grid_shuffle.STRATEGY,
        balanced.STRATEGY,
        balanced_buffer.STRATEGY,
        *EXACT,
        block_shuffle.STRATEGY,
    )
}
