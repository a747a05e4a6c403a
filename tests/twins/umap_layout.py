"""Slow and obvious twins of the cluster map's graph and of `core.kernels.umap_layout`."""

import math

import numpy as np
from numpy.typing import NDArray


def graph(near: NDArray[np.integer], distances: NDArray[np.floating]) -> dict[tuple[int, int], float]:
    """The likeness of each pair of points in UMAP's graph. near, distances (n, k): each point's nearest, itself too."""
    n, k = near.shape
    seen: dict[tuple[int, int], float] = {}
    for point in range(n):
        others = [
            (other, float(d))
            for other, d in zip(near[point], distances[point], strict=True)
            if other != point
        ]
        nearest = min((d for _, d in others if d > 0), default=0.0)
        beyond = [max(0.0, d - nearest) for _, d in others]
        low, high = 1e-9, 1e9
        for _ in range(300):
            scale = math.sqrt(low * high)
            if sum(math.exp(-b / scale) for b in beyond) < math.log2(k):
                low = scale
            else:
                high = scale
        scale = max(scale, 1e-3 * float(np.mean(distances[point])))
        for (other, _), b in zip(others, beyond, strict=True):
            seen[point, int(other)] = math.exp(-b / scale)
    pairs = {*seen, *((b, a) for a, b in seen)}
    both = {(a, b): (seen.get((a, b), 0.0), seen.get((b, a), 0.0)) for a, b in pairs}
    return {pair: p + q - p * q for pair, (p, q) in both.items()}


def lay_out(
    xy: NDArray[np.floating],
    edges: list[tuple[int, int, float]],
    passes: int,
    a: float,
    b: float,
    seed: int,
) -> NDArray[np.float64]:
    """Places after all passes over the edges: head, tail, and in how many passes it pulls once."""
    xy = xy.astype(np.float64)
    due = [every for _, _, every in edges]
    state = seed

    def step(gap: NDArray[np.float64], force: float, rate: float) -> NDArray[np.float64]:
        return rate * np.clip(force * gap, -4.0, 4.0)

    for number in range(passes):
        rate = 1.0 - number / passes
        for at, (head, tail, every) in enumerate(edges):
            if due[at] > number:
                continue
            due[at] += every
            gap = xy[head] - xy[tail]
            square = float(gap @ gap)
            if square:
                force = -2 * a * b * square ** (b - 1) / (1 + a * square**b)
                moved = step(gap, force, rate)
                xy[head] += moved
                xy[tail] -= moved
            for _ in range(5):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                gap = xy[head] - xy[(state >> 33) % len(xy)]
                square = float(gap @ gap)
                if square:
                    force = 2 * b / ((0.001 + square) * (1 + a * square**b))
                    xy[head] += step(gap, force, rate)
    return xy
