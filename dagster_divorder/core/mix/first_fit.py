"""First-fit selection under a budget."""

import numpy as np
from numpy.typing import NDArray


def first_fit(sizes: NDArray[np.integer], budget: int) -> NDArray[np.bool_]:
    """Takes each item in turn that fits into the remaining budget; bool (n,). sizes: (n,) >= 0. Afterwards no further
    item fits. O(n) for each item that is too large."""
    taken, coming = np.zeros(len(sizes), bool), np.flatnonzero(sizes <= budget)
    while len(coming):
        sums = np.cumsum(sizes[coming], dtype=np.int64)
        fits = int(np.searchsorted(sums, budget, side="right"))
        taken[coming[:fits]] = True
        budget -= int(sums[fits - 1])
        coming = coming[fits:]
        coming = coming[sizes[coming] <= budget]
    return taken
