"""The arguments of an order, checked: what is consumed already, and the problem of ordering the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.order.arguments import frozen_items, make_problem, one_of
from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.core.order.strategies import STRATEGIES
from dagster_divorder.core.order.targets import check_targets
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

EVEN_NORMS = frozenset({"balanced"})
"""Strategies that also balance how far items stray from the mix by themselves. f1, f2 and f3 are as their source has
them."""


class Task(NamedTuple):
    """problem: of all items; strategy, place: its name and function; frozen int64 (F,): consumed already; rest int64
    (M - F,): to order, rising."""

    problem: Problem
    strategy: str
    place: Callable[[Problem], Order]
    frozen: NDArray[np.int64]
    rest: NDArray[np.int64]

    def rest_problem(self) -> Problem:
        """The problem of ordering the rest after what is frozen. Its item i is rest[i]."""
        if not self.frozen.size:
            return self.problem
        return self.problem.part(self.rest, placed=self.problem.part(self.frozen).totals())


def make_task(
    counts: csr_matrix | csr_array,
    groups: ArrayLike,
    *,
    strategy: str = "balanced",
    frozen: ArrayLike | None = None,
    **options: Any,
) -> Task:
    """The arguments of `core.order.order`, checked as it does."""
    one_of("strategy", strategy, list(STRATEGIES))
    problem = make_problem(counts, groups, **options)
    if problem.targets is not None:
        check_targets(problem.targets, problem.groups)
    if (problem.block_strategy if strategy == "block_shuffle" else strategy) in EVEN_NORMS:
        problem = problem.with_norms()
    if problem.items and not len(problem.groups):
        raise InputError(
            f"counts has no column for its {problem.items} items; expected at least one trait value"
        )
    consumed = frozen_items(frozen, problem.items)
    left = np.ones(problem.items, bool)
    left[consumed] = False
    return Task(problem, strategy, STRATEGIES[strategy], consumed, np.flatnonzero(left))
