"""Shards: contiguous parts of the items, of nearly equal size, and shuffles that never leave a part of them.

Letters: M items.
"""

import numpy as np
from numpy.typing import NDArray


def shard_of(items: int, shards: int) -> NDArray[np.int64]:
    """The shard of each place, int64 (M,), in [0, shards). Sizes differ by one at most; some are 0 if M < shards."""
    return np.arange(items) * shards // max(items, 1)


def shuffled_within(
    order: NDArray[np.int64], parts: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """The order, its items at the places of each part shuffled among these. parts: int (M,), the part of each place."""
    places = np.argsort(parts, kind="stable")
    shuffled = random.permutation(len(order))
    out = np.empty_like(order)
    out[places] = order[shuffled[np.argsort(parts[shuffled], kind="stable")]]
    return out
