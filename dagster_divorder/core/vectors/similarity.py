"""Statistics of the pairwise cosine similarities of a sample of documents.

Letters: n sampled documents, D dims.
Guarantee: exact over all n (n - 1) / 2 pairs, in float32 products and float64 sums; the same bytes for any number of
threads.
Cost: O(n^2 D) time, 2 n^2 bytes of memory (50 MB and some 1 s for 5,000 x 256).
Source: Diversity-Ordered Training's similarity report.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from dagster_divorder.core.blas import one_blas_thread
from dagster_divorder.core.checks import finite
from dagster_divorder.errors import InputError

MAX_ROWS = 20_000
"""Most rows, 800 MB of pairs; a larger sample gives the same statistics."""

HIGH = np.float32(0.9)

BLOCK_ROWS = 512
BLOCK_PAIRS = 1 << 18


def cosine_statistics(vectors: ArrayLike) -> dict[str, float | int | None]:
    """rows, pairs; mean, std, min, p5, p50, p95, max of cos(v_i, v_j) over the pairs i < j of vectors (n, D); and
    high_sim_pairs_gt_0.9, the number of pairs above 0.9, which Diversity-Ordered Training counts as near copies.

    A zero vector has cosine 0 with every other. With fewer than two rows the statistics are None.

    Raises:
        InputError: there are more than MAX_ROWS rows, or NaN or infinity.
    """
    unit = np.array(vectors, np.float32)
    if unit.ndim != 2 or len(unit) > MAX_ROWS:
        raise InputError(
            f"vectors has the shape {unit.shape}; expected (n, D) with n of at most {MAX_ROWS}: sample first"
        )
    finite("the vectors", unit)
    n = len(unit)
    if n < 2:
        names = ("mean", "std", "min", "p5", "p50", "p95", "max")
        return {"rows": n, "pairs": 0, **dict.fromkeys(names), "high_sim_pairs_gt_0.9": 0}
    # Scaling by the largest entry keeps squares within the range of float32.
    unit /= np.maximum(np.abs(unit).max(axis=1, keepdims=True, initial=0.0), np.finfo(np.float32).tiny)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(np.float32).tiny)

    pairs = np.empty(n * (n - 1) // 2, np.float32)
    filled = 0
    with one_blas_thread():
        for start in range(0, n, BLOCK_ROWS):
            block = unit[start : start + BLOCK_ROWS] @ unit[start:].T
            for i, row in enumerate(block):
                later = row[i + 1 :]
                pairs[filled : filled + len(later)] = later
                filled += len(later)
        np.clip(pairs, -1.0, 1.0, out=pairs)
        mean = float(pairs.mean(dtype=np.float64))
        # Block by block, because float64 would double the memory of all pairs.
        parts = (pairs[at : at + BLOCK_PAIRS] - np.float64(mean) for at in range(0, len(pairs), BLOCK_PAIRS))
        variance = math.fsum(float(part @ part) for part in parts) / len(pairs)
    p5, p50, p95 = np.percentile(pairs, (5, 50, 95), overwrite_input=True)
    return {
        "rows": n,
        "pairs": len(pairs),
        "mean": mean,
        "std": math.sqrt(variance),
        "min": float(pairs.min()),
        "p5": float(p5),
        "p50": float(p50),
        "p95": float(p95),
        "max": float(pairs.max()),
        "high_sim_pairs_gt_0.9": int(np.count_nonzero(pairs > HIGH)),
    }
