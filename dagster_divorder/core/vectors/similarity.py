"""Statistics of the pairwise cosine similarities of a sample of documents.

Letters: n sampled documents, D dims.
Guarantee: exact over all n (n - 1) / 2 pairs, in float32 products and float64 sums; the same bytes for any number of
threads. Cost: O(n^2 D) time, 8 n^2 bytes of memory (200 MB for 5,000).
Source: Diversity-Ordered Training's similarity report.
"""

import numpy as np
from numpy.typing import ArrayLike

from dagster_divorder.core.blas import one_blas_thread
from dagster_divorder.core.checks import finite
from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.errors import InputError

MAX_ROWS = 20_000
"""Most rows; a larger sample gives the same statistics."""
HIGH = np.float32(0.9)
QUANTILES = {"min": 0, "p5": 5, "p50": 50, "p95": 95, "max": 100}


def cosine_statistics(vectors: ArrayLike) -> dict[str, float | int | None]:
    """rows, pairs; mean, std, min, p5, p50, p95, max of cos(v_i, v_j) over the pairs i < j of vectors (n, D); and
    high_sim_pairs_gt_0.9, the number of pairs above 0.9, which Diversity-Ordered Training counts as near copies.

    A zero vector has cosine 0 with every other. With fewer than two rows the statistics are None.

    Raises:
        InputError: there are more than MAX_ROWS rows, or NaN or infinity.
    """
    rows = np.asarray(vectors, np.float32)
    if rows.ndim != 2 or len(rows) > MAX_ROWS:
        raise InputError(
            f"vectors has the shape {rows.shape}; expected (n, D) with n of at most {MAX_ROWS}: sample first"
        )
    finite("the vectors", rows)
    n = len(rows)
    if n < 2:
        return {
            "rows": n,
            "pairs": 0,
            **dict.fromkeys(["mean", "std", *QUANTILES]),
            "high_sim_pairs_gt_0.9": 0,
        }
    unit = unit_rows(rows)
    with one_blas_thread():
        products = unit @ unit.T
    pairs = np.concatenate([products[row, row + 1 :] for row in range(n)]).clip(-1.0, 1.0)
    quantiles = np.percentile(pairs, [*QUANTILES.values()])
    return {
        "rows": n,
        "pairs": len(pairs),
        "mean": float(pairs.mean(dtype=np.float64)),
        "std": float(pairs.std(dtype=np.float64)),
        **dict(zip(QUANTILES, map(float, quantiles), strict=True)),
        "high_sim_pairs_gt_0.9": int(np.count_nonzero(pairs > HIGH)),
    }
