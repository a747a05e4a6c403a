"""Seeds for libraries that take fewer bits than the `seed` setting; random numbers of ids."""

import numpy as np
from numpy.typing import NDArray

BITS = 31
"""faiss takes a C int; scikit-learn and UMAP take an unsigned one."""


def small_seed(seed: int) -> int:
    """The seed itself if it is below 2**31, else a number drawn from it."""
    if seed < 1 << BITS:
        return seed
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint32)[0] >> (32 - BITS))


def drawn(ids: NDArray[np.uint64], *seed: int) -> NDArray[np.uint64]:
    """A random number for each id, uint64 (n,), whatever other ids there are: distinct ids have distinct ones."""
    mask, factor = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    numbers: NDArray[np.uint64] = (ids ^ mask) * (factor | np.uint64(1))
    return numbers
