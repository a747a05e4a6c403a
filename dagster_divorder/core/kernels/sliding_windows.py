"""Moves a window over every position of documents in order: the hot loop of `core.measure.window_deviation`.

Letters: N documents, J trait values, W tokens a window.

Algebra. n_j(a) is the number of tokens of value j in [a, a + W). A document's tokens share one value of the trait, so
n_j(a) is linear until an end of the window meets an end of a document. Between two such breakpoints the window loses
tokens of one document and gains as many of another, so only two gaps |n_j / W - p_j| change. The largest gap is known,
and is searched for only if it falls.

Guarantee: tokens are summed in int64 and never as floats; equal to the twin in `tests/twins/metrics.py`.
Cost: O(N), and O(J) each time that the largest gap falls, of several values at once; O(J) memory beside the inputs. One
thread.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@njit(inline="always")
def _largest(bits: Ints) -> int:
    most = bits[0]
    for j in range(bits.shape[0]):
        most = max(most, bits[j])
    return most


@kernel
def slide_documents(
    tokens: Ints, codes: NDArray[np.int32], share: Floats, window: int
) -> tuple[float, float, float, float, int]:
    """worst, mean, worst_tv, mean_tv, worst_start of one trait over all positions of the window.

    tokens int64 (N,), in order, at least `window` in all; codes int32 (N,) in [0, J); share float64 (J,). Means are
    trapezoid integrals over the breakpoints. Every J steps the sum of the gaps |n_j / W - p_j| is computed again, so
    that rounding does not add up over millions of steps.
    """
    n_values = share.shape[0]
    gaps, total = np.zeros(n_values), 0.0
    # Floats that are not negative compare like their bits, and processors compare several whole numbers at once.
    bits = gaps.view(np.int64)
    largest = np.zeros(1)
    largest_bits = largest.view(np.int64)
    inside = np.zeros(n_values, np.int64)
    k, left = 0, window  # the document at the window's end; tokens still to come into the first window
    while left > 0:
        take = min(left, tokens[k])
        inside[codes[k]] += take
        left -= take
        if take == tokens[k]:
            k += 1
            take = 0
    for j in range(n_values):
        gaps[j] = abs(inside[j] / window - share[j])
        total += gaps[j]
    largest_bits[0] = _largest(bits)
    out_left = tokens[0]
    in_left = tokens[k] - take if k < tokens.shape[0] else 0
    worst, worst_tv, area, area_tv = -1.0, 0.0, 0.0, 0.0
    i, at, start, step, since = 0, 0, 0, 0, 0
    before, before_tv = 0.0, 0.0
    while True:
        since += 1
        if since >= n_values:
            since = 0
            total = 0.0
            for j in range(n_values):
                total += gaps[j]
        most, tv = largest[0], total / 2
        if most > worst:
            worst = most
            start = at
        worst_tv = max(worst_tv, tv)
        area += (before + most) / 2 * step
        area_tv += (before_tv + tv) / 2 * step
        before, before_tv = most, tv

        while out_left == 0:
            i += 1
            out_left = tokens[i]
        while in_left == 0 and k < tokens.shape[0]:
            k += 1
            in_left = tokens[k] if k < tokens.shape[0] else 0
        if k == tokens.shape[0]:
            break
        step = min(out_left, in_left)
        at += step
        out_left -= step
        in_left -= step
        gone, come = codes[i], codes[k]
        if gone != come:
            inside[gone] -= step
            inside[come] += step
            fell = max(bits[gone], bits[come])
            for j in (gone, come):
                gap = abs(inside[j] / window - share[j])
                total += gap - gaps[j]
                gaps[j] = gap
            rose = max(bits[gone], bits[come])
            if rose >= largest_bits[0]:
                largest_bits[0] = rose
            elif fell == largest_bits[0]:
                largest_bits[0] = _largest(bits)
    if at == 0:
        return worst, before, worst_tv, before_tv, start
    return worst, area / at, worst_tv, area_tv / at, start
