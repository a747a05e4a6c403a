"""f1, f2, f3: exact greedies on the objectives of Don't Shuffle, Optimize. Each step takes the item with the least
deviation.

Guarantee: exact within rounding; of equal items a random one goes, by the seed.
Cost: O(M^2) time with a small constant (a few features an item and step, and the entries that meet), O(nnz + J) memory:
20,000 sequences (1000 clusters + 100 length bins) take 0.2 s, 100,000 5 s.
Known weakness: quadratic time. Items of small norm go first, so the end strays furthest; `balanced` strays as little
and is linear.

T_j: the tokens of trait value j placed so far. S_g: all tokens of group g placed so far. tau_j: the value's share of
its group. c_s: the row of item s. l_sg: its sum in group g.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from dagster_divorder.core.order import balanced
from dagster_divorder.core.order.problem import Order, Problem, mix
from dagster_divorder.core.order.strategy import Strategy, StrategyOptions


def f3(problem: Problem) -> Order:
    """argmin over s of sum_g w_g sum_{j in g} ((T_j + c_sj) - tau_j (S_g + l_sg))^2, over any number of traits.
    Approach 3 of the source has two groups, clusters and a histogram of document lengths; its lambda is w_1."""
    from dagster_divorder.core.kernels.order_greedy import best_of_pool, classes_of

    rows, totals = problem.rows, problem.totals
    classes, share = classes_of(rows, totals), mix(totals, rows.groups)
    items = np.random.default_rng(problem.seed).permutation(problem.items)
    nothing = np.zeros(len(totals)), np.zeros(rows.dense.shape[1])
    return best_of_pool(items, rows, share, classes, *nothing, len(items), 1.0, 0, len(items))


def f1(problem: Problem) -> Order:
    """`f3` on group 0 alone (approach 1). Items with tokens spread over many values have a small norm and go first;
    concentrated ones wait until the end. Short items go before long ones."""
    return f3(problem.first_group())


class F2Options(StrategyOptions):
    f2_lambda: float = Field(1.0, ge=0, le=1e9, allow_inf_nan=False)
    """Weight of the norms' term: with more, concentrated items wait less and the trait is followed less closely."""


def f2(problem: Problem, *, f2_lambda: float) -> Order:
    """argmin over s of f1(s) + lambda ((N + |c_s|) - nu (S + l_s))^2, with |c_s| the L2 norm of the item's row in group
    0, N the sum of the placed norms, and nu all norms a token (approach 2; if all items have length L, S / L is the
    number of items placed). Items of the mean norm go first; at the end, very concentrated and very spread ones
    alternate."""
    first = problem.first_group()
    norms, whole = np.zeros(problem.items), first.totals.sum()
    for items, entries, row in first.chunks():
        squares = first.rows.data[entries].astype(np.float64) ** 2
        norms[items] = np.sqrt(np.bincount(row, squares, len(norms[items])))
    excess = math.sqrt(f2_lambda) * (norms - (norms.sum() / whole if whole else 0.0) * first.sizes)
    return f3(first.with_coordinate(np.asarray(excess, np.float64)))


class BlockOptions(StrategyOptions):
    block_strategy: Literal["balanced", "f1", "f2", "f3"] = "balanced"
    """The strategy whose order is cut into blocks of `batch` items."""


def block_shuffle(problem: Problem, *, block_strategy: str) -> Order:
    """The batches of another strategy's order in random order, each kept whole; the last, partial one stays last. So
    training does not follow a bias of the greedy (greedy_block_shuffle of Don't Shuffle, Optimize). In an order of
    several sections only the first one begins at a batch. A window that is not aligned joins parts of two batches that
    were not balanced together."""
    inner = {strategy.name: strategy for strategy in (balanced.STRATEGY, *EXACT)}[
        block_strategy
    ].with_options()
    order = inner.permute(problem.with_norms() if inner.balances_norms else problem)
    blocks = problem.items // problem.batch
    whole = order[: blocks * problem.batch].reshape(blocks, problem.batch)
    shuffled = np.random.default_rng(problem.seed).permutation(blocks)
    return np.concatenate([whole[shuffled].ravel(), order[whole.size :]])


EXACT = (
    Strategy("f1", f1),
    Strategy("f2", f2, F2Options),
    Strategy("f3", f3, takes_coordinates=True),
)
BLOCK_SHUFFLE = Strategy("block_shuffle", block_shuffle, BlockOptions, takes_coordinates=True)
