"""The slow, obvious twin of members.py."""

import numpy as np
from numpy.typing import NDArray


def nearest_members(
    labels: NDArray[np.int32],
    distances: NDArray[np.float32],
    ties: NDArray[np.uint64],
    members: NDArray[np.int64],
) -> None:
    """As there: all documents sorted."""
    members[:] = -1
    for k, row in enumerate(members):
        own = np.flatnonzero(labels == k)
        nearest = own[np.lexsort((ties[own], distances[own]))][: len(row)]
        row[: len(nearest)] = nearest
