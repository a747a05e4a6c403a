"""f2: `f1` plus a term that keeps the items' norms in pace, exact.

    argmin over s of f1(s) + lambda ((N + |c_s|) - nu (S + l_s))^2,    of equal ones a random item,

with |c_s| the L2 norm of the item's row in group 0, N the sum of the norms placed so far and nu the sum of all norms
by token.

lambda (`f2_lambda`, 1 by default) is the weight of the norms' term: concentrated items wait less as it rises, and the
trait is followed less closely. 20,000 sequences: the norms placed stray from their pace by 1.9M tokens without it, with
0.1 by 11,300, 1 1,100, 10 210; the clusters' prefixes by 11,700, 13,300, 13,300, 13,500, and with 100 by 20,100.
Guarantee and cost: see `greedy`. Source: the second seed, approach 2; with items of equal length L its S / L is the
number of items placed.
Known weakness: items of the mean norm go first, so that at the end very concentrated and very spread ones take turns.
"""

import math

import numpy as np

from dagster_divorder.core.order.greedy import exact
from dagster_divorder.core.order.problem import Order, Problem


def place(problem: Problem) -> Order:
    first = problem.first_group()
    placed, whole = first.placed.values.sum(), first.whole.values.sum()
    norm_by_token = first.whole.norms / whole if whole else 0.0
    weight = math.sqrt(problem.f2_lambda)
    pace = weight * (first.norms - norm_by_token * first.sizes)
    ahead = weight * (first.placed.norms - norm_by_token * placed)
    return exact(first.with_coordinate(np.asarray(pace, np.float64), float(ahead)))
