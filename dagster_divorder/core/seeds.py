"""Seeds for libraries that take fewer bits than the `seed` setting."""

import numpy as np

BITS = 31
"""faiss takes a C int; scikit-learn and UMAP take an unsigned one."""


def small_seed(seed: int) -> int:
    """The seed itself if it is below 2**31, else a number drawn from it."""
    if seed < 1 << BITS:
        return seed
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint32)[0] >> (32 - BITS))
