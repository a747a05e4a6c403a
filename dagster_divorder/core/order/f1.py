"""f1: the second seed's objective over one trait, exact: `f3` on group 0 alone.

    argmin over s of sum_{j in group 0} ((T_j + c_sj) - tau_j (S + l_s))^2,    of equal ones a random item.

Guarantee and cost: see `greedy`. Source: the second seed, approach 1.
Known weakness: items whose tokens are spread over many values have a small norm and go first; concentrated ones wait
until the end. Of items of varying length the short ones go first.
"""

from dagster_divorder.core.order.greedy import exact
from dagster_divorder.core.order.problem import Order, Problem


def place(problem: Problem) -> Order:
    return exact(problem.first_group())
