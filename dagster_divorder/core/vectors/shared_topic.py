"""A linear map that keeps what two parts of a document share, its topic, and removes what differs between them.

Letters: P pairs, D dims. x and x', float (P, D), are vectors of two parts of a document: x = m + y + e, where
y ~ N(0, S) is what the parts share (the topic) and e ~ N(0, E) is each part's own.

    E = cov(x - x') / 2, shrunk        S = (cov(x, x') + cov(x', x)) / 2
    E^-1/2 S E^-1/2 = U diag(s) U'     map = E^-1/2 U diag(s / (1 + s))

(x - m) map is the expectation of y given x, in coordinates in which E is the identity. Directions in which the parts of
a document differ as much as documents do vanish.

Guarantee: no randomness; the same bytes for the same vectors (BLAS runs on one thread).
Cost: O(P D^2 + D^3), memory 32 bytes x P D.
Sources: Ioffe 2006 and Prince and Elder 2007 (probabilistic linear discriminant analysis); Ledoit and Wolf 2004 (the
shrinkage of E); Hatch, Kajarekar and Stolcke 2006 (within-class covariance normalisation).
Known weakness: the parts of a document also share layout, author and language.
"""

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-9
"""Eigenvalues of E below this share of the largest are rounding noise."""


def topic_map(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """The map, float64 (D, D), columns from the most shared direction to the least.

    s is shrunk towards its mean with the weight of D pairs, as few pairs estimate it badly. The map is the identity if
    there are fewer than two pairs, or if the parts share nothing or are all equal.
    """
    from sklearn.covariance import ledoit_wolf
    from threadpoolctl import threadpool_limits

    pairs, dims = first.shape
    identity = np.eye(dims)
    if pairs < 2:
        return identity
    mean = (first.mean(0, dtype=np.float64) + second.mean(0, dtype=np.float64)) / 2
    x, y = first - mean, second - mean
    with threadpool_limits(limits=1):
        own, axes = np.linalg.eigh(ledoit_wolf(x - y, assume_centered=True)[0] / 2)
        if own[-1] <= 0:
            return identity
        white = axes * np.maximum(own, FLOOR * own[-1]) ** -0.5 @ axes.T
        cross = white @ (x.T @ y) @ white / pairs
        shared, directions = np.linalg.eigh((cross + cross.T) / 2)
        shared, directions = np.maximum(shared[::-1], 0.0), directions[:, ::-1]
        shared = (pairs * shared + dims * shared.mean()) / (pairs + dims)
        if not shared.any():
            return identity
        return np.asarray(white @ directions * (shared / (1 + shared)))
