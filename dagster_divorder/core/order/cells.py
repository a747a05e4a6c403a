"""Cells: contiguous parts of an order, each reordered by itself. `spread` and `epochs` are built from them.

Letters: M items.
Guarantee: no item leaves its cell; cells keep their order. The strategy starts each cell from the totals of everything
before it, so a cell makes up for the deviation of earlier ones.
Cost: the strategy's on each cell, two large cells at a time in threads, and O(nnz + J) for the totals of each.
Known weakness: inside a cell the strategy has fewer items to choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.problem import Order, Problem, Totals
from dagster_divorder.core.order.strategy import Strategy

LARGE_CELL = 256
"""Average items a cell from which on cells are ordered in threads."""

Result = TypeVar("Result")


def cell_bounds(items: int, cells: int, batch: int) -> NDArray[np.int64]:
    """Bounds of the cells, int64 (cells + 1,): of nearly equal size, and in whole batches if a cell has four or
    more."""
    bounds = np.arange(cells + 1) * items // cells
    if items >= 4 * batch * cells:
        bounds[1:-1] = np.rint(bounds[1:-1] / batch).astype(np.int64) * batch
    return bounds


def order_in_cells(
    problem: Problem,
    strategy: Strategy,
    order: Order,
    bounds: NDArray[np.int64],
    *,
    keep: NDArray[np.bool_] | None = None,
    anew: bool = False,
    own_mix: bool = False,
    draw: int = 0,
) -> Order:
    """`order`, an order of the problem's items, with each cell reordered.

    bounds: int64 (cells + 1,), where cells begin and end, rising from 0 to M.
    keep: bool (M,), by item: whether it keeps its place; the others fill the places left.
    anew: shuffle each cell and fix its first item, so that a deterministic strategy gives another order too.
    own_mix: each cell keeps its own mix, whatever precedes it. For cells that already have the intended mix.
    draw: selects other random numbers under the same seed; each cell has its own.
    """
    out = order.copy()
    placed = [problem.placed]
    for begin, end in pairwise(bounds[:-1]):
        placed.append(placed[-1] + problem.part(order[begin:end]).totals())

    def order_cell(begin: int, end: int, before: Totals, seed: int) -> None:
        positions = np.arange(begin, end)
        if keep is not None:
            positions = positions[~keep[order[positions]]]
        items = order[positions]
        if anew and items.size:
            items = np.random.default_rng(seed).permutation(items)
            out[positions[0]] = items[0]
            before = before + problem.part(items[:1]).totals()
            positions, items = positions[1:], items[1:]
        out[positions] = items
        if items.size > 1:
            part = alone(problem, items) if own_mix else problem.part(items, placed=before)
            out[positions] = items[strategy.permute(replace(part, seed=seed))]

    seeds = np.random.SeedSequence([problem.seed, draw]).generate_state(len(placed)).tolist()
    each_cell(order_cell, bounds, placed, seeds)
    return out


def each_cell(
    function: Callable[..., Result], bounds: NDArray[np.int64], *by_cell: Sequence[Any]
) -> list[Result]:
    """`function(begin, end, *values)` of each cell; raises its errors. bounds: int64 (cells + 1,), as in
    `order_in_cells`. by_cell: sequences of a value for each cell or more."""
    begins, ends = bounds[:-1], bounds[1:]
    if bounds[-1] < LARGE_CELL * len(begins):
        # Threads would only wait for each other: a small cell is mostly work in Python.
        return list(map(function, begins, ends, *by_cell))
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(function, begins, ends, *by_cell))


def alone(problem: Problem, items: NDArray[np.int64]) -> Problem:
    """The problem of ordering only these items; their own mix is the target."""
    part = problem.part(items)
    nothing = np.zeros(part.dense.shape[1])
    part = replace(
        part, placed=Totals(values=np.zeros(len(problem.groups)), items=0, norms=0.0, dense=nothing)
    ).recentred(nothing)
    return replace(part, whole=part.totals(), targets=None)
