"""Slow, obvious twins of `place.py`. For tests only."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels.place import (
    CLOSE_ENOUGH,
    EPOCHS,
    FIRST_STEP,
    LEAST_SIGMA,
    LONGEST_MOVE,
    NEGATIVES,
)

Doubles = NDArray[np.float64]


def nearest(point: Doubles, points: Doubles, k: int) -> tuple[NDArray[np.int64], Doubles]:
    """The k nearest rows of points (n, C), and their distances."""
    distances = np.linalg.norm(points - point, axis=1)
    near = np.argsort(distances, kind="stable")[:k]
    return near, distances[near]


def memberships(distances: Doubles) -> Doubles:
    """exp(-d / sigma), (k,), with the sigma that a root finder finds; the least one where there is none."""
    from scipy.optimize import brentq

    target = np.log2(len(distances))
    least = LEAST_SIGMA * distances.mean()

    def excess(log_sigma: float) -> float:
        return float(np.exp(-distances[1:] / np.exp(log_sigma)).sum() - target)

    if excess(-30.0) > -CLOSE_ENOUGH:
        sigma = np.exp(-30.0)
    elif excess(30.0) < CLOSE_ENOUGH:
        sigma = np.exp(30.0)
    else:
        sigma = np.exp(brentq(excess, -30.0, 30.0))
    return np.asarray(np.exp(-distances / max(sigma, least)))


def settle(start: Doubles, weights: Doubles, near: Doubles, draws: Doubles, a: float, b: float) -> Doubles:
    """Where a point that starts at start (2,) comes to rest: near (k, 2) are the places of its neighbours, draws (R, 2)
    those of the points that push it away, in turn."""
    place = np.array(start, np.float64)
    shares = np.where(weights >= weights.max() / EPOCHS, weights / weights.max(), 0.0)
    pushes = np.zeros(len(weights))
    drawn = 0
    for epoch in range(1, EPOCHS):
        step = FIRST_STEP * (1.0 - (epoch - 1) / EPOCHS)
        for j, share in enumerate(shares):
            if np.floor(epoch * share) == np.floor((epoch - 1) * share):
                continue
            place += step * _move(place - near[j], lambda s: -2 * a * b * s ** (b - 1) / (1 + a * s**b))
            while pushes[j] + 1 < np.floor(NEGATIVES * epoch * share):
                pushes[j] += 1
                other = draws[drawn % len(draws)]
                drawn += 1
                place += step * _move(place - other, lambda s: 2 * b / ((0.001 + s) * (1 + a * s**b)))
    return place


def _move(apart: Doubles, gradient: Callable[[float], float]) -> Doubles:
    square = float(apart @ apart)
    return np.clip(gradient(square) * apart, -LONGEST_MOVE, LONGEST_MOVE) if square > 0 else np.zeros(2)
