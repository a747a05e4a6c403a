"""How much of a set has changed, estimated from small samples (sketches).

Letters: N ids, m ids of a sketch.
Guarantee: exact if both sets together have at most SIZE ids; above that the standard deviation of the share is at most
0.008. The same ids give the same sketch, whatever their order.
Cost: 8 SIZE bytes a sketch, whatever the size of the set.
Source: Cohen and Kaplan 2007, bottom-k sketches; Beyer, Haas, Reinwald, Sismanis and Gemulla 2007, KMV.
Known weakness: ids must be hashes that spread evenly over 64 bits.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.distinct import distinct_values

SIZE = 4096


def sketch(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The SIZE smallest distinct ids, uint64 (m,), rising. ids: uint64 (N,)."""
    return distinct_values(ids)[:SIZE]


def changed_share(before: NDArray[np.uint64], now: NDArray[np.uint64]) -> float:
    """Share of the union's ids that only one of the two sketched sets has: 0 if nothing changed, 1 if everything
    did."""
    both = distinct_values(np.concatenate([before, now]))
    if len(before) == SIZE or len(now) == SIZE:
        # Beyond the SIZE smallest ids of the union, a full sketch cannot show which ids its set lacks.
        both = both[:SIZE]
    common = _are_among(both, before) & _are_among(both, now)
    return float(1.0 - common.mean()) if len(both) else 0.0


def left_share(before: NDArray[np.uint64], now: NDArray[np.uint64]) -> float:
    """Share of the sketched set that is still among the ids `now`, uint64 (N,), whatever was added. before: a sketch of
    at least one id."""
    return float(_are_among(before, distinct_values(now[now <= before[-1]])).mean())


def _are_among(ids: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each id is among others, which rise. `numpy.isin` would import numpy.ma in every run."""
    return np.searchsorted(others, ids, "right") > np.searchsorted(others, ids)
