"""The slow, obvious twin of kernels/silhouette.py: every pair of vectors."""

import numpy as np
from numpy.typing import NDArray


def silhouettes(
    vectors: NDArray[np.float32], labels: NDArray[np.int32], centre: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Rousseeuw's silhouette of each vector, float64 (N,), with cosine distances seen from the centre."""
    points = vectors.astype(np.float64) - centre
    lengths = np.linalg.norm(points, axis=1)
    directed = lengths > 1e-6 * np.linalg.norm(centre.astype(np.float64))
    unit = np.where(directed[:, None], points / np.where(directed, lengths, 1.0)[:, None], 0.0)
    distance = 1.0 - unit @ unit.T
    np.fill_diagonal(distance, 0.0)
    result = np.zeros(len(vectors))
    for i, own in enumerate(labels):
        alike = labels == own
        others = [distance[i, labels == k].mean() for k in set(labels.tolist()) if k != own]
        if alike.sum() == 1 or not others:
            continue
        a, b = distance[i, alike].sum() / (alike.sum() - 1), min(others)
        result[i] = (b - a) / max(a, b) if max(a, b) > 1e-12 else 0.0
    return result
