"""The hot loop that finds each cluster's nearest documents.

Letters: N documents, K clusters, m documents kept of each. Twin: tests/twins/members.py.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel


@kernel
def nearest_members(
    labels: NDArray[np.int32],
    distances: NDArray[np.float32],
    ties: NDArray[np.uint64],
    members: NDArray[np.int64],
) -> None:
    """members[k] = the documents of cluster k by rising (distance, tie), -1 after the last one.

    Reads labels (N,), distances (N,), ties (N,), distinct within a cluster; documents with labels outside [0, K) are
    left out. Writes members (K, m). O(N), and O(m) for each of the few documents that enter the list.
    """
    clusters, kept = members.shape
    members[:] = -1
    for d in range(labels.shape[0]):
        k = labels[d]
        if k < 0 or k >= clusters:
            continue
        at = kept
        while at > 0:
            other = members[k, at - 1]
            if other >= 0 and (
                distances[other] < distances[d]
                or (distances[other] == distances[d] and ties[other] < ties[d])
            ):
                break
            at -= 1
        for later in range(kept - 1, at, -1):
            members[k, later] = members[k, later - 1]
        if at < kept:
            members[k, at] = d
