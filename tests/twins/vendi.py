"""The Vendi score by its definition: the eigenvalues of the N x N kernel."""

from __future__ import annotations

import numpy as np


def vendi(vectors: np.ndarray, weights: np.ndarray) -> float:
    """Of vectors (N, D) and weights (N,), N small."""
    roots = np.sqrt(weights / weights.sum())
    values = np.linalg.eigvalsh(np.outer(roots, roots) * (vectors.astype(np.float64) @ vectors.T))
    values = values[values > 1e-12]
    return float(np.exp(-(values * np.log(values)).sum()))
