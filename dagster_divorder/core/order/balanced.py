"""balanced: signed-balancing passes, then a sliding pool of candidates. The default, and the reason for this package.

The deviation of a prefix of n items, over trait groups g with weights w_g and running totals S_g:

    F = sum_g w_g sum_{j in g} (T_j - tau_j S_g)^2 + sum_d Z_d^2 + LENGTH_WEIGHT w_0 (S_0 - n mean length)^2

with Z the sums of the items' dense coordinates. `Problem.with_norms` adds one group, quantile bins of the whole row's
norm. A window is the difference of two prefixes, so keeping F small at every prefix keeps every window near the whole's
mix.

1. A signed-balancing pass over a shuffle: each centred row gets the sign that keeps the signed running sum small. The
   plus rows make one half of the order, the minus rows the other; both are already near the whole's mix.
2. More passes inside each half: plus rows to the front in order, minus rows to the back reversed. A pass halves the
   prefixes' deviation, down to the bound of the signing.
3. A pool of candidates slides over each half's queue; the candidate with the best score goes next. One half is laid
   forwards from the beginning of the order, the other backwards from its end, in two threads that share nothing.
4. When the queues run out, the items left in both pools are laid in the same way, with ever smaller pools. The last few
   items fill the gap in the middle, by the same score.

The score of item a at deviation D is <D, a> + self_weight |a|^2 / 2; self_weight = 1 is the exact greedy on F.

Guarantee: of candidates that are equal within rounding, the first in the queue goes. The queue begins as a shuffle, so
equal items come in random order. The same seed gives the same bytes on any number of cores. For equally long items the
deviation stops growing once M is several pools.
Cost: O(M (pool + entries that meet in it)) time, linear in M; O(nnz + M + J + pool) memory. Rows stay sparse.
Source: the objective is f1 and f3 of Don't Shuffle, Optimize. Passes: Harvey and Samadi 2014; Alweiss, Liu and Sawhney
2021; GraB (Lu, Guo and De Sa 2022). Design effect: Kish 1965.
Measurements: docs/decisions/ordering.md.
Known weakness: an item far longer than the rest strays from the mix by itself, whatever the order.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.items import design_effect
from dagster_divorder.core.order.problem import Order, Problem, mix
from dagster_divorder.core.order.strategy import Strategy

Floats = NDArray[np.float64]

PASSES = 8
"""Signed-balancing passes: more keep prefixes nearer to the mix."""
POOL = 16_384
"""Candidates for items of equal length: more are nearer to the exact greedy, and slower. Common trait values reduce the
number, since a step costs the entries that the placed item shares with every candidate."""
SAMPLE = 1 << 20
"""Entries sampled to estimate how common trait values are; enough for two digits."""
CANDIDATES_PER_KIND = 8
"""Most candidates of one kind, on average; more of a kind add no choice."""
DIMS_PER_ENTRY = 8.0
"""Dense coordinates that cost a step as much as one entry that it shares with a candidate."""
LAST_POOL, SHRINK = 32, 2
"""The items left in both pools are laid with pools SHRINK times smaller, down to LAST_POOL. Laying them in one go, by
the exact greedy, would leave the worst items for last."""
MIN_DENSE_POOL = 512
"""Replaces MIN_POOL if items have dense coordinates."""
MIN_POOL = 1024
"""Candidates for items of very unequal length. A pool that holds a large share of such items can delay those that score
badly."""
SELF_WEIGHT = 0.5
"""Weight of |a|^2 in the score of items of equal length; a smaller one delays large items less. It nears 1 as lengths
differ, because less makes batches of documents worse."""
LENGTH_WEIGHT = 0.15
"""Weight, relative to group 0's, of keeping tokens in pace with the number of items: a larger one mixes lengths more
evenly and traits less. Without it the pool takes short items first, as any greedy on squared deviations does."""


def permute(problem: Problem) -> Order:
    from dagster_divorder.core.kernels.order_balance import sign_pass
    from dagster_divorder.core.kernels.order_greedy import best_of_pool, classes_of, totals_of

    tokens = problem.totals[problem.rows.groups == 0].sum()
    excess = problem.sizes - tokens / problem.items
    if excess.any():
        problem = problem.with_coordinate(excess * math.sqrt(LENGTH_WEIGHT * problem.rows.weights[0]))
    rows = problem.rows
    classes = classes_of(rows, problem.totals)
    share = mix(problem.totals, rows.groups)
    pool, self_weight = _pool_and_weight(problem)
    # The rows in shuffled order, so that passes read memory nearly in sequence.
    shuffled = np.random.default_rng(problem.seed).permutation(problem.items)
    rows = rows.take(shuffled)
    queue = np.arange(problem.items)
    ends: list[list[Order]] = [[], []]
    so_far = [(np.zeros(len(rows.groups)), np.zeros(rows.dense.shape[1])) for _ in ends]
    # The queue's first item goes first, so that every seed gives another order, even of few items.
    fixed = 1

    def lay(
        half: Order, start: tuple[Floats, Floats], candidates: int, first_fixed: int
    ) -> tuple[Order, Order]:
        other = np.empty_like(half)
        for _ in range(PASSES - 1 if len(half) > 1 else 0):
            sign_pass(half, rows, share, other)
            half, other = other, half
        steps = max(len(half) - candidates, min(first_fixed, len(half)))
        laid = best_of_pool(half, rows, share, classes, *start, candidates, self_weight, first_fixed, steps)
        return laid[:steps], laid[steps:]

    with ThreadPoolExecutor(2) as threads:
        while pool > LAST_POOL:
            halved = np.empty_like(queue)
            middle = sign_pass(queue, rows, share, halved)
            halves = (halved[:middle], halved[middle:])
            del queue  # frees its memory while the halves are laid
            laid_and_left = list(threads.map(lay, halves, so_far, repeat(pool), repeat(fixed)))
            for end, (laid, _) in enumerate(laid_and_left):
                ends[end].append(laid)
                values, dense = so_far[end]
                so_far[end] = (
                    values + totals_of(laid, rows),
                    dense + rows.dense[laid].sum(axis=0, dtype=np.float64),
                )
            queue = np.concatenate([left for _, left in laid_and_left])
            pool, fixed = pool // SHRINK, 0
    # Nothing comes after the gap, so delaying items costs less.
    between = best_of_pool(
        queue, rows, share, classes, *so_far[0], len(queue), 0.5 * (1.0 + self_weight), 0, len(queue)
    )
    back = [laid[::-1] for laid in ends[1][::-1]]
    return shuffled[np.concatenate([*ends[0], between, *back])]


def _pool_and_weight(problem: Problem) -> tuple[int, float]:
    """Size of the pool, and weight of |a|^2. Both depend on Kish's design effect of the lengths, M sum l^2 / (sum l)^2,
    1 for equal ones. The pool also depends on the entries that a placed item shares with one candidate, sum_j (share of
    the items that hold j)^2, and on the number of kinds. Items with the same set of trait values are of one kind."""
    effect = design_effect(problem.sizes)
    # Whole items are sampled: rows often have one width, so every n-th entry could be of the same trait.
    sample = problem.part(np.arange(0, problem.items, -(-len(problem.rows.indices) // SAMPLE) or 1))
    holding = np.bincount(sample.rows.indices) / sample.items
    met = max(1.0, float(holding @ holding))
    # A set of values is identified by the sum of one random number for each value.
    number = np.random.default_rng(0).random(len(problem.rows.groups))[sample.rows.indices]
    kinds = len(
        np.unique(np.bincount(np.arange(sample.items).repeat(np.diff(sample.rows.indptr)), weights=number))
    )
    dims = problem.rows.dense.shape[1]
    if dims > 1:
        # Every item is its own kind, and a step costs the coordinates of every candidate.
        pool = max(MIN_DENSE_POOL, round(POOL / (effect * met * (1.0 + dims / DIMS_PER_ENTRY))))
        return pool, 1.0 - (1.0 - SELF_WEIGHT) / effect
    pool = min(round(POOL / (effect * met)), CANDIDATES_PER_KIND * kinds)
    return max(MIN_POOL, pool), 1.0 - (1.0 - SELF_WEIGHT) / effect


STRATEGY = Strategy("balanced", permute, takes_coordinates=True, balances_norms=True)
