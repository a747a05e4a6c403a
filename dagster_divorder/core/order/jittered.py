"""jittered: item j of a random permutation of label i gets the time stamp (j + s_i) / n_i; all sorted by it.

n_i is the number of items of label i, s_i ~ U(0, 1) one a label.
Guarantee: the items of one label are evenly spaced, 1 / n_i apart, each exactly once in its interval.
Cost: two sorts, O(M log M). Source: the 2-way jittered shuffle of the second seed (TerRIFIC; third seed).
Known weakness: counts items, not tokens, and one trait only; of a packed sequence, only the cluster with most tokens.
"""

import numpy as np

from dagster_divorder.core.order.problem import Order, Problem


def place(problem: Problem) -> Order:
    random = np.random.default_rng(problem.seed)
    shuffled = random.permutation(problem.items)
    labels = problem.labels
    sizes = np.bincount(labels)
    offsets = random.random(len(sizes))
    items = shuffled[np.argsort(labels[shuffled], kind="stable")]
    rank = np.arange(len(items)) - (np.cumsum(sizes) - sizes).repeat(sizes)
    stamps = (rank + offsets.repeat(sizes)) / sizes.repeat(sizes)
    return items[np.argsort(stamps, kind="stable")]
