"""Whether a gradient proxy distinguishes documents as full gradients do, from cosines alone, float64 (N, N).

Cost: O(N^3). Source: Spokes, 4.1 (row-wise rank correlation) and 4.2 (overlap of choices). Known weakness: a hundred
documents miss rare kinds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_blas_thread
from dagster_divorder.core.mix.selection import choose, spokes

Cosines = NDArray[np.float64]


def rank_agreement(proxy: Cosines, whole: Cosines) -> float:
    """Mean over documents of Spearman's correlation between the cosines by proxy and by full gradient with all other
    documents. NaN below three documents."""
    from scipy.stats import rankdata

    others = ~np.eye(len(whole), dtype=bool)
    ranks = [rankdata(each[others].reshape(len(whole), -1), axis=1) for each in (proxy, whole)]
    of_proxy, of_whole = (rank - rank.mean(axis=1, keepdims=True) for rank in ranks)
    sizes = np.linalg.norm(of_proxy, axis=1) * np.linalg.norm(of_whole, axis=1)
    products = np.sum(of_proxy * of_whole, axis=1)[sizes > 0] / sizes[sizes > 0]
    return float(products.mean()) if len(products) else float("nan")


def choice(cosines: Cosines, share: float) -> NDArray[np.bool_]:
    """The selection of `spokes` by vectors with these cosines, bool (N,). share: of the documents."""
    with one_blas_thread():
        values, axes = np.linalg.eigh(cosines)
    # Vectors in N dims with the same angles.
    points = np.ascontiguousarray(axes * np.sqrt(np.maximum(values, 0)), np.float32)
    weights = spokes(points, np.arange(len(points))).weights
    return choose(weights, np.ones(len(points), np.int64), max(1, round(share * len(points))))
