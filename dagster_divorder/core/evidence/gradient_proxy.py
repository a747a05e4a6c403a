"""Whether a gradient proxy distinguishes documents as full gradients do, from cosines alone.

Letters: N documents. Cosines are (N, N), of all pairs.

Cost: O(N^3). Source: Spokes selects by such proxies (`core.mix.selection`). Known weakness: a few hundred documents
miss rare kinds, and shares of few documents are coarse.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    of_proxy, of_whole = (
        rankdata(cosines[others].reshape(len(whole), -1), axis=1) for cosines in (proxy, whole)
    )
    of_proxy -= of_proxy.mean(axis=1, keepdims=True)
    of_whole -= of_whole.mean(axis=1, keepdims=True)
    sizes = np.linalg.norm(of_proxy, axis=1) * np.linalg.norm(of_whole, axis=1)
    apart = sizes > 0
    if not apart.any():
        return float("nan")
    return float(np.mean(np.sum(of_proxy * of_whole, axis=1)[apart] / sizes[apart]))


def choices(cosines: Cosines, shares: Sequence[float]) -> list[NDArray[np.bool_]]:
    """Selections of `spokes` by vectors with these cosines, bool (N,), one for each share of the documents."""
    with one_blas_thread():
        values, axes = np.linalg.eigh(cosines)
    # Vectors in N dims with the same angles.
    points = np.ascontiguousarray(axes * np.sqrt(np.maximum(values, 0)), np.float32)
    rows = np.arange(len(points))
    weights = spokes(points, rows).weights
    return [
        choose(weights, np.ones(len(rows), np.int64), max(1, round(share * len(rows)))) for share in shares
    ]


def overlap(chosen: NDArray[np.bool_], reference: NDArray[np.bool_]) -> float:
    """Share of the reference selection that is also chosen."""
    return float((chosen & reference).sum() / reference.sum())
