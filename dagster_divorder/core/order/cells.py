"""Cells: contiguous parts of an order, each ordered anew in itself. What `spread` and `epochs` are made of.

Letters: M items.
Guarantee: no item leaves its cell; the cells keep their order. The strategy orders each cell after the totals of all
that stands before it, so it makes up for what the cells before leave out of the mix.
Cost: that of the strategy on each cell, and O(nnz + J) for the totals of each.
Known weakness: a strategy that chooses among all items has fewer to choose from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.core.order.problem import Order, Problem, Totals, frozen_items, make_problem, one_of
from dagster_divorder.core.order.targets import check_targets
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix


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
    if problem.items and not len(problem.groups):
        raise InputError(
            f"counts has no column for its {problem.items} items; expected at least one trait value"
        )
    consumed = frozen_items(frozen, problem.items)
    left = np.ones(problem.items, bool)
    left[consumed] = False
    return Task(problem, strategy, STRATEGIES[strategy], consumed, np.flatnonzero(left))


def cell_bounds(items: int, cells: int, batch: int) -> NDArray[np.int64]:
    """Where cells begin, and the last ends, int64 (cells + 1,): nearly equal, of whole batches if of some of them."""
    bounds = np.arange(cells + 1) * items // cells
    if items >= 4 * batch * cells:
        bounds[1:-1] = np.rint(bounds[1:-1] / batch).astype(np.int64) * batch
    return bounds


def order_in_cells(
    problem: Problem,
    place: Callable[[Problem], Order],
    order: Order,
    bounds: NDArray[np.int64],
    *,
    keep: NDArray[np.bool_] | None = None,
    anew: bool = False,
    stream: int = 0,
) -> Order:
    """`order`, an order of the problem's items, with the items of each cell ordered anew.

    bounds: int64 (cells + 1,), rising from 0 to M: where cells begin and end.
    keep: bool (M,), by item: these stay where they are, and the others fill the places left.
    anew: shuffle each cell and put its first item first, so that a strategy without chance has another order, too.
    stream: which of the streams of random numbers of the problem's seed; each cell has its own.
    """
    out = order.copy()
    placed = problem.placed
    seeds = np.random.SeedSequence([problem.seed, stream]).generate_state(len(bounds) - 1)
    for begin, end, seed in zip(bounds[:-1], bounds[1:], seeds.tolist(), strict=True):
        places = np.arange(begin, end)
        if keep is not None:
            places = places[~keep[order[places]]]
        items = order[places]
        before = placed
        if anew and items.size:
            items = np.random.default_rng(seed).permutation(items)
            out[places[0]] = items[0]
            before = placed + problem.part(items[:1]).totals()
            places, items = places[1:], items[1:]
        if items.size:
            out[places] = items[place(problem.part(items, placed=before, seed=seed))]
        placed = placed + problem.part(order[begin:end]).totals()
    return out


def alone(problem: Problem, items: NDArray[np.int64]) -> Problem:
    """The problem of ordering some of the items by their own mix, as if there were no others."""
    part = problem.part(items)
    nothing = Totals(values=np.zeros(len(problem.groups)), items=0, norms=0.0)
    return replace(part, placed=nothing, whole=part.totals(), targets=None)
