"""The strategies by name."""

from __future__ import annotations

from collections.abc import Collection

from dagster_divorder.core.order import balanced, grid_shuffle
from dagster_divorder.core.order.baselines import BASELINES
from dagster_divorder.core.order.block_shuffle import shuffling_batches_of
from dagster_divorder.core.order.curricula import curricula
from dagster_divorder.core.order.greedy import EXACT
from dagster_divorder.core.order.strategy import Strategy
from dagster_divorder.errors import InputError

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
    **{strategy.name: strategy for strategy in curricula(_SIMPLE)},
}


def check_follows_targets(name: str, strategy: str, moved: Collection[str] = (), first: str = "") -> None:
    """InputError if the strategy, given by the argument `name`, does not follow the targets of the traits in `moved`.
    first: the trait of group 0."""
    following = [known.name for known in STRATEGIES.values() if known.follows_targets]
    if strategy not in following:
        raise InputError(
            f"{name} is {strategy!r}, which does not follow targets; expected one of {', '.join(following)}, or no "
            "targets"
        )
    if STRATEGIES[strategy].first_group_only and (others := sorted({*moved} - {first})):
        raise InputError(
            f"{name} is {strategy!r}, which balances only the first trait, {first}, and targets move "
            f"{', '.join(others)}; use balanced or f3, or leave these targets out"
        )
