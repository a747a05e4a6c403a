"""Slow, obvious twins of `pool.py` and `project.py`. For tests only."""

import math

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.vectors.unit import NO_DIRECTION

Tokens = NDArray[np.uint32]
Counts = NDArray[np.int64]
Singles = NDArray[np.float32]
Doubles = NDArray[np.float64]


def documents_of(ids: Tokens, lengths: Counts) -> list[Tokens]:
    """Flat ids cut into documents."""
    return np.split(ids, np.cumsum(lengths)[:-1]) if len(lengths) else []


def pool_rows(ids: Tokens, lengths: Counts, table: Singles, weights: Singles) -> Doubles:
    """One table row per token, weighted, summed and normalised, in float64 (N, D)."""
    pooled = np.zeros((len(lengths), table.shape[1]))
    for d, tokens in enumerate(documents_of(ids, lengths)):
        for t in tokens:
            pooled[d] += np.float64(weights[t]) * table[t]
        norm = np.linalg.norm(pooled[d])
        if norm > 0:
            pooled[d] /= norm
    return pooled


def count_documents(ids: Tokens, lengths: Counts, vocabulary: int) -> list[int]:
    sets = [set(tokens.tolist()) for tokens in documents_of(ids, lengths)]
    return [sum(t in tokens for tokens in sets) for t in range(vocabulary)]


def count_pairs(pieces: list[set[int]], contexts: list[int], vocabulary: int) -> Doubles:
    """(V, C): in how many pieces, each a set of tokens, token t and context c occur together."""
    pairs = [
        [sum(t in piece and c in piece for piece in pieces) for c in contexts] for t in range(vocabulary)
    ]
    return np.array(pairs, np.float64).reshape(vocabulary, len(contexts))


def nearest(vectors: Singles, centre: Singles, centroids: Singles) -> tuple[NDArray[np.int64], Doubles]:
    """Label and cosine distance of each centred vector, every centroid tried in float64."""
    centred = vectors.astype(np.float64) - centre
    dots = np.array(
        [[sum(x * m for x, m in zip(row, mean, strict=True)) for mean in centroids] for row in centred]
    )
    labels = dots.argmax(axis=1)
    scale = np.linalg.norm(centred, axis=1) * np.linalg.norm(centroids.astype(np.float64), axis=1)[labels]
    best = dots[np.arange(len(dots)), labels]
    return labels, 1.0 - np.divide(best, scale, out=np.zeros_like(best), where=scale > 0)


def project_rows(vectors: NDArray[np.floating], mean: Doubles, axes: Doubles) -> Doubles:
    """Each row less the mean, on the axes, over its length, in float64 (n, C)."""
    floor = NO_DIRECTION * math.hypot(*mean)
    rows = []
    for row in vectors.astype(np.float64):
        on_axes = [math.fsum((row - mean) * axis) for axis in axes.T]
        rows.append([0.0] * len(on_axes) if math.hypot(*on_axes) <= floor else _unit(on_axes))
    return np.array(rows).reshape(len(vectors), axes.shape[1])


def _unit(row: list[float]) -> list[float]:
    length = math.hypot(*row)
    return [x / length for x in row] if length > 0 else row
