"""Slow, obvious twin of `project.py`. For tests only."""

import math

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.vectors.unit import NO_DIRECTION

Doubles = NDArray[np.float64]


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
