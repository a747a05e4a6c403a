"""Cells: contiguous parts of an order, each ordered anew in itself. `spread` and `epochs` are built from them.

Letters: M items.
Guarantee: no item leaves its cell; the cells keep their order. The strategy orders each cell after the totals of
everything before it, so each cell makes up for the deviation of earlier cells.
Cost: the strategy's on each cell, two at a time in threads, and O(nnz + J) for the totals of each.
Known weakness: inside a cell the strategy has fewer items to choose from.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.problem import Order, Problem, Totals
from dagster_divorder.core.order.strategy import Strategy


def cell_bounds(items: int, cells: int, batch: int) -> NDArray[np.int64]:
    """The cells' bounds, int64 (cells + 1,): nearly equal sizes, in whole batches if a cell has four or more."""
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
    """`order`, an order of the problem's items, with the items of each cell ordered anew.

    bounds: int64 (cells + 1,), rising from 0 to M: where cells begin and end.
    keep: bool (M,), by item: these keep their places; the others fill the places left.
    anew: shuffle each cell and fix its first item, so that even a deterministic strategy gives another order.
    own_mix: each cell keeps its own mix, whatever precedes it; for cells that already have the intended mix.
    draw: selects other random numbers for the same seed of the problem; each cell has its own.
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
        if items.size:
            part = alone(problem, items) if own_mix else problem.part(items, placed=before)
            out[positions] = items[strategy.permute(replace(part, seed=seed))]

    seeds = np.random.SeedSequence([problem.seed, draw]).generate_state(len(placed)).tolist()
    with ThreadPoolExecutor(2) as threads:
        # list() raises the threads' errors.
        list(threads.map(order_cell, bounds[:-1], bounds[1:], placed, seeds))
    return out


def alone(problem: Problem, items: NDArray[np.int64]) -> Problem:
    """The problem of ordering only these items, with their own mix as target."""
    part = problem.part(items)
    nothing = np.zeros(part.dense.shape[1])
    part = replace(
        part, placed=Totals(values=np.zeros(len(problem.groups)), items=0, norms=0.0, dense=nothing)
    ).recentred(nothing)
    return replace(part, whole=part.totals(), targets=None)
