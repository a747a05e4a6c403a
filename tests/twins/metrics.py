"""Slow, obvious twins: of `windows.py`, writing out every single token; of `sliding_windows.py`, in exact fractions.

For tests only; O(tokens) memory, O(M J) fractions.
"""

from bisect import bisect_right
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]


def token_windows(tokens: Ints, codes: Codes, window: int) -> list[Codes]:
    """The trait value of every token, cut into windows; the last may be partial."""
    stream = np.repeat(codes, tokens)
    return [stream[start : start + window] for start in range(0, len(stream), window)]


def distinct_split(tokens: Ints, codes: Codes, window: int) -> list[int]:
    return [len(set(inside.tolist())) for inside in token_windows(tokens, codes, window)]


def distinct_flush(tokens: Ints, codes: Codes, window: int) -> list[int]:
    """A document that does not fit is written token by token into sequences of its own."""
    closed: list[int] = []
    open_values: set[int] = set()
    filled = 0
    for n, value in zip(tokens.tolist(), codes.tolist(), strict=True):
        if filled + n > window:
            if filled:
                closed.append(len(open_values))
            open_values, filled = set(), 0
            for _ in range(n):
                open_values.add(value)
                filled += 1
                if filled == window:
                    closed.append(len(open_values))
                    open_values, filled = set(), 0
        else:
            open_values.add(value)
            filled += n
    return closed + ([len(open_values)] if open_values else [])


def window_counts(tokens: Ints, codes: Codes, n_values: int, window: int) -> Ints:
    rows = [np.bincount(inside, minlength=n_values) for inside in token_windows(tokens, codes, window)]
    return np.array(rows, np.int64).reshape(-1, n_values)


def window_deviations(
    tokens: Ints, codes: Codes, share: Floats, window: int
) -> tuple[Floats, Floats, Floats]:
    """Worst, total variation and L2 distance of the full windows only."""
    full = [inside for inside in token_windows(tokens, codes, window) if len(inside) == window]
    counts = np.array([np.bincount(inside, minlength=len(share)) for inside in full]).reshape(-1, len(share))
    gaps = np.abs(counts / window - share)
    return gaps.max(axis=1, initial=0.0), 0.5 * gaps.sum(axis=1), np.sqrt((gaps**2).sum(axis=1))


def prefix_squares(tokens: Ints, codes: Codes, share: Floats, window: int) -> Floats:
    stream = np.repeat(codes, tokens)
    ends = [min(start + window, len(stream)) for start in range(0, len(stream), window)]
    seen = np.array([np.bincount(stream[:t], minlength=len(share)) for t in ends]).reshape(-1, len(share))
    return np.asarray(((seen - share * np.array(ends)[:, None]) ** 2).sum(axis=1))


def moving_deviations(
    tokens: Ints, codes: Codes, progress: Floats, shares: Floats, starts: Ints, ends: Ints
) -> tuple[Floats, Floats, Floats]:
    """Against shares float64 (P, J) at points of progress, linear between them, in windows of single tokens.

    Integrated by Simpson's rule between the points where the shares bend, which is exact for them."""
    stream = np.repeat(codes, tokens)
    gaps = np.zeros((len(starts), shares.shape[1]))
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        bends = progress * len(stream)
        at = np.unique([start, *bends[(bends > start) & (bends < end)], end])
        for a, b in pairwise(at.tolist()):
            left, middle, right = (
                np.array([np.interp(t / len(stream), progress, of) for of in shares.T])
                for t in (a, (a + b) / 2, b)
            )
            gaps[i] -= (b - a) / 6 * (left + 4 * middle + right)
        gaps[i] += np.bincount(stream[start:end], minlength=shares.shape[1])
        gaps[i] = np.abs(gaps[i]) / (end - start)
    return gaps.max(axis=1, initial=0.0), 0.5 * gaps.sum(axis=1), np.sqrt((gaps**2).sum(axis=1))


def coverage(tokens: Ints, codes: Codes) -> float:
    stream = np.repeat(codes, tokens).tolist()
    wanted = set(stream)
    for read in range(len(stream) + 1):
        if set(stream[:read]) == wanted:
            return read / len(stream) if stream else 0.0
    raise AssertionError("the whole stream has every value")


def sliding_windows(
    order: list[int], counts: list[list[int]], groups: list[int], window: int
) -> tuple[list[int], list[tuple[list[Fraction], list[Fraction]]]]:
    """The breakpoints, and by group (worst, TV) at each, from the share of every value there.

    The amount of value j in [0, t) is read off the straight lines between item boundaries.
    """
    length = [sum(c for c, g in zip(row, groups, strict=True) if g == 0) for row in counts]
    items = [s for s in order if length[s]]
    bounds, amounts = [0], [[0] * len(groups)]
    for s in items:
        bounds.append(bounds[-1] + length[s])
        amounts.append([n + c for n, c in zip(amounts[-1], counts[s], strict=True)])

    def before(t: int) -> list[Fraction]:
        s = min(bisect_right(bounds, t), len(items)) - 1
        part = Fraction(t - bounds[s], bounds[s + 1] - bounds[s])
        return [n + part * (m - n) for n, m in zip(amounts[s], amounts[s + 1], strict=True)]

    def gaps(a: int, values: list[int]) -> list[Fraction]:
        inside = [n - m for n, m in zip(before(a + window), before(a), strict=True)]
        found, whole = sum(inside[j] for j in values), sum(amounts[-1][j] for j in values)
        return [
            abs(inside[j] / found - Fraction(amounts[-1][j], whole)) if found else Fraction(0) for j in values
        ]

    starts = sorted({a for t in bounds for a in (t, t - window) if 0 <= a <= bounds[-1] - window})
    by_group = []
    for group in range(max(groups) + 1):
        found = [gaps(a, [j for j, g in enumerate(groups) if g == group]) for a in starts]
        by_group.append(([max(gap) for gap in found], [sum(gap, Fraction(0)) / 2 for gap in found]))
    return starts, by_group
