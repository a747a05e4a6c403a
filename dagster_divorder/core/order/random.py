"""random: a uniform shuffle, the baseline to beat.

Guarantee: every order is equally likely; the same seed gives the same order.
Cost: O(M). Source: Fisher and Yates, as in NumPy.
Known weakness: a prefix of t items strays by about sqrt(t (M - t) / M) items' norms, so batches differ from the whole
by chance alone, long items most of all.
"""

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem


def place(problem: Problem) -> Order:
    return np.random.default_rng(problem.seed).permutation(problem.items)
