"""Items taken in turn, as long as they fit into a budget."""

import numpy as np
from numpy.typing import NDArray


def first_fit(sizes: NDArray[np.integer], budget: int) -> NDArray[np.bool_]:
    """Which of the items of `sizes` (n,), from 0 on, are taken, bool (n,): the first preferred, each that fits into
    what those before it leave, so that no other would fit beside those taken. O(n) for each time that one is too large.
    """
    taken, coming = np.zeros(len(sizes), bool), np.flatnonzero(sizes <= budget)
    while len(coming):
        sums = np.cumsum(sizes[coming], dtype=np.int64)
        fits = int(np.searchsorted(sums, budget, side="right"))
        taken[coming[:fits]] = True
        budget -= int(sums[fits - 1])
        coming = coming[fits:]
        coming = coming[sizes[coming] <= budget]
    return taken
