"""Deviation of windows from the whole's mix, over every position of the window.

Letters: N documents in order, J trait values, W tokens a window, T tokens in all.

A window is W consecutive tokens and may start at any token. At a breakpoint an end of the window meets the end of a
document. Between breakpoints every share is linear in the window's position and the deviation is convex, so its maximum
is at a breakpoint and exact.

Guarantee: tokens are counted exactly in 64 bits; shares are float64. An order that repeats documents, epoch after
epoch, is one stream, and windows across seams count like any other.
Cost: O(N log J) time for each window size, two breakpoints a document; O(J) memory beside the stream.
Source: the objective of Don't Shuffle, Optimize, max_j max_[a,b) |p_j(a,b) - p_j|, here for windows of one size.
Known weakness: means are trapezoid integrals over the breakpoints, hence upper bounds, as the deviation is convex: 1 to
2 % too high in windows of a sequence of the mixture corpus, exact in batches. Cut documents add breakpoints and tighten
the bound, so compare the means of orders with equal cuts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive
from dagster_divorder.core.measure.stream import token_shares
from dagster_divorder.core.measure.stretches import slide_along

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.stretch_windows import AskedMix


@dataclass(frozen=True)
class WindowDeviation:
    """Deviation of one trait's shares in a window from the whole's p, over every position of the window.

    For the window at token a, with shares p_j(a), both in [0, 1]:
        worst(a) = max_j |p_j(a) - p_j|        tv(a) = 1/2 sum_j |p_j(a) - p_j|
    worst, worst_tv: their maxima. mean, mean_tv: their means over a, as trapezoid integrals over the breakpoints.
    worst_start: the first token a at which worst(a) is largest; -1 without tokens, or if averaged orders disagree.
    positions: T - W + 1; 0 without tokens, and then all values are 0.
    partial: the whole is shorter than one window, so the window is the whole and deviates by 0.
    ideal, ideal_tv: mean deviation of shuffled single tokens; see `shuffled_tokens`.
    """

    window_tokens: int
    positions: int
    worst: float
    mean: float
    worst_tv: float
    mean_tv: float
    worst_start: int
    partial: bool
    ideal: float
    ideal_tv: float


def windows_in_stream(
    tokens: NDArray[np.int64],
    codes: NDArray[np.int32],
    n_values: int,
    window_tokens: int,
    mix: AskedMix | None = None,
) -> WindowDeviation:
    """Worst and mean deviation of one trait over all positions of a window of `window_tokens` tokens.

    tokens (N,) of documents in reading order, codes (N,) in [0, J); documents without tokens are ignored.
    mix: of each stretch (`core.measure.stretches`); it replaces the whole's p, in O(N J) time and O(N) memory. `ideal`
    still uses p.
    """
    from dagster_divorder.core.kernels.sliding_windows import slide_documents

    window = positive("window_tokens", window_tokens)
    total = int(tokens.sum())
    share = token_shares(tokens, codes, n_values)
    ideal = shuffled_tokens(share, window)
    if total <= window:
        # A window at least as long as the whole deviates by 0.
        start = 0 if total else -1
        return WindowDeviation(window, int(total > 0), 0.0, 0.0, 0.0, 0.0, start, 0 < total < window, *ideal)
    slid = (
        slide_documents(tokens, codes, share, window)
        if mix is None
        else slide_along(tokens, codes, mix, window)
    )
    return WindowDeviation(window, total - window + 1, *slid, False, *ideal)


def shuffled_tokens(share: ArrayLike, window_tokens: int) -> tuple[float, float]:
    """(largest over j, total variation) of the mean deviation of shuffled single tokens.

    share: p, float (J,). In n = window_tokens random tokens the share of value j deviates by sqrt(2 p_j (1 - p_j) / (pi
    n)) on average (mean absolute deviation of the binomial, normal approximation). The first number is the largest of
    these deviations. A mean of maxima is at least the maximum of the means, so `mean` exceeds it even for shuffled
    tokens. The second is half their sum, the `mean_tv` of shuffled tokens.
    """
    p = np.asarray(share, np.float64)
    off = np.sqrt(2 * p * (1 - p) / (math.pi * positive("window_tokens", window_tokens)))
    return float(off.max(initial=0.0)), float(off.sum() / 2)
