"""The hot loop of placing new points on a map that stays as it is.

Letters: n points of the map, m new points, C dims, k neighbours, R draws.
A new point x has a membership w_j = exp(-d_j / sigma) to each of its k nearest points j of the map, at the distances
d_j, where sigma makes the memberships of all but the nearest sum to log2(k). Its place y starts at the mean of their
places, weighted by w, and moves down the gradient of

    -sum_j w_j log q(y, y_j) - sum_i log(1 - q(y, y_i)),   q(y, z) = 1 / (1 + a |y - z|^2b),

i drawn from all points: a step towards j in a share of the epochs that rises with w_j, and NEGATIVES steps away from
points i for each.

Guarantee: a row of the result depends on that row of the input, the map and the draws alone. The GIL is released.
Source: UMAP.transform of umap-learn, given one point; McInnes, Healy and Melville 2018. Twin: tests/twins/place.py.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Singles = NDArray[np.float32]
Draws = NDArray[np.int64]

EPOCHS = 100
NEGATIVES = 5
FIRST_STEP = 0.25
LONGEST_MOVE = 4.0
HALVINGS = 64
CLOSE_ENOUGH = 1e-5
LEAST_SIGMA = 1e-3
"""Of the mean distance to the neighbours."""


@njit(cache=True, nogil=True)
def nearest(
    point: Singles, columns: Singles, squares: Singles, near: Draws, distances: NDArray[np.float64]
) -> None:
    """The k nearest points of a map: near (k,) and distances (k,), rising; of equal ones the first.

    Reads point (C,), columns (C, n), the points of the map by dim; squares (n,) is scratch. O(n C).
    """
    squares[:] = 0.0
    for c in range(columns.shape[0]):
        x = point[c]
        for i in range(columns.shape[1]):
            squares[i] += (x - columns[c, i]) * (x - columns[c, i])
    k = near.shape[0]
    found = 0
    for i in range(squares.shape[0]):
        if found < k or squares[i] < distances[k - 1]:
            at = min(found, k - 1)
            while at > 0 and distances[at - 1] > squares[i]:
                distances[at] = distances[at - 1]
                near[at] = near[at - 1]
                at -= 1
            distances[at] = squares[i]
            near[at] = i
            found = min(found + 1, k)
    for j in range(k):
        distances[j] = np.sqrt(distances[j])


@njit(cache=True, nogil=True)
def memberships(distances: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
    """weights[j] = exp(-d_j / sigma), sigma found by halving. Reads distances (k,), rising; writes weights (k,)."""
    k = distances.shape[0]
    target = np.log2(np.float64(k))
    low, high, sigma = 0.0, np.inf, 1.0
    for _ in range(HALVINGS):
        total = 0.0
        for j in range(1, k):
            total += np.exp(-distances[j] / sigma)
        if abs(total - target) < CLOSE_ENOUGH:
            break
        if total > target:
            high = sigma
            sigma = (low + high) / 2.0
        else:
            low = sigma
            sigma = sigma * 2.0 if high == np.inf else (low + high) / 2.0
    sigma = max(sigma, LEAST_SIGMA * distances.mean())
    for j in range(k):
        weights[j] = np.exp(-distances[j] / sigma)


@njit(cache=True, nogil=True)
def settle(
    weights: NDArray[np.float64], near: Draws, xy: Singles, draws: Draws, a: float, b: float, place: Singles
) -> None:
    """place (2,), which holds where the point starts, becomes where it comes to rest.

    Reads weights (k,), near (k,), xy (n, 2) and draws (R,), rows of the map that are taken in turn. O(EPOCHS k).
    """
    k = weights.shape[0]
    # How often a neighbour has a part, of all epochs; never, where it would not have one in EPOCHS.
    share = weights / weights.max()
    share[share < 1.0 / EPOCHS] = 0.0
    pulls = np.zeros(k, np.int64)
    pushes = np.zeros(k, np.int64)
    px, py = np.float64(place[0]), np.float64(place[1])
    drawn = 0
    for epoch in range(1, EPOCHS):
        step = FIRST_STEP * (1.0 - (epoch - 1) / EPOCHS)
        for j in range(k):
            if pulls[j] >= int(epoch * share[j]):
                continue
            pulls[j] += 1
            dx, dy = px - xy[near[j], 0], py - xy[near[j], 1]
            square = dx * dx + dy * dy
            if square > 0.0:
                pull = -2.0 * a * b * square ** (b - 1.0) / (1.0 + a * square**b)
                px += step * min(LONGEST_MOVE, max(-LONGEST_MOVE, pull * dx))
                py += step * min(LONGEST_MOVE, max(-LONGEST_MOVE, pull * dy))
            while pushes[j] < int(NEGATIVES * epoch * share[j]) - 1:
                pushes[j] += 1
                i = draws[drawn]
                drawn = (drawn + 1) % draws.shape[0]
                dx, dy = px - xy[i, 0], py - xy[i, 1]
                square = dx * dx + dy * dy
                if square > 0.0:
                    push = 2.0 * b / ((0.001 + square) * (1.0 + a * square**b))
                    px += step * min(LONGEST_MOVE, max(-LONGEST_MOVE, push * dx))
                    py += step * min(LONGEST_MOVE, max(-LONGEST_MOVE, push * dy))
    place[0] = px
    place[1] = py


@njit(cache=True, nogil=True)
def place_rows(
    points: Singles,
    columns: Singles,
    xy: Singles,
    neighbours: int,
    draws: Draws,
    a: float,
    b: float,
    first: int,
    last: int,
    placed: Singles,
) -> None:
    """Places of new points on a map.

    Reads points (m, C), columns (C, n), xy (n, 2), draws (R,); writes rows [first, last) of placed (m, 2).
    O(n C + EPOCHS k) a row.
    """
    squares = np.empty(columns.shape[1], np.float32)
    near = np.empty(neighbours, np.int64)
    distances = np.empty(neighbours)
    weights = np.empty(neighbours)
    for row in range(first, last):
        nearest(points[row], columns, squares, near, distances)
        memberships(distances, weights)
        placed[row] = xy[near[0]]
        if distances[0] > 0.0:
            x, y, total = 0.0, 0.0, 0.0
            for j in range(neighbours):
                x += weights[j] * xy[near[j], 0]
                y += weights[j] * xy[near[j], 1]
                total += weights[j]
            placed[row, 0] = x / total
            placed[row, 1] = y / total
        settle(weights, near, xy, draws, a, b, placed[row])
