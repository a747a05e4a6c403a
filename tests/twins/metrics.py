"""Slow, obvious twins: of `windows.py`, writing out every single token; of `sliding_windows.py`, in exact fractions.

For tests only; O(tokens) memory.
"""

from fractions import Fraction
from itertools import accumulate

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


def stretch_gaps(tokens: Ints, codes: Codes, stretch: Ints, n_values: int) -> Floats:
    """By how much every single token differs from the mix of its stretch, (tokens, J); windows add up."""
    stream, of = np.eye(n_values)[np.repeat(codes, tokens)], np.repeat(stretch, tokens)
    return np.array([token - stream[of == of[at]].mean(axis=0) for at, token in enumerate(stream)]).reshape(
        -1, n_values
    )


def coverage(tokens: Ints, codes: Codes) -> float:
    stream = np.repeat(codes, tokens).tolist()
    wanted = set(stream)
    for read in range(len(stream) + 1):
        if set(stream[:read]) == wanted:
            return read / len(stream) if stream else 0.0
    raise AssertionError("the whole stream has every value")


def sliding_windows(
    tokens: list[int], codes: list[int], n_values: int, window: int
) -> tuple[list[int], list[Fraction], list[Fraction]]:
    """The breakpoints, and (worst, TV) at each, from every token of the window there."""
    stream = [code for n, code in zip(tokens, codes, strict=True) for _ in range(n)]
    bounds = [0, *accumulate(tokens)]
    last = len(stream) - window
    starts = sorted({a for t in bounds for a in (t, t - window) if 0 <= a <= last})
    worst, variation = [], []
    for a in starts:
        inside = stream[a : a + window]
        gaps = [
            abs(Fraction(inside.count(j), window) - Fraction(stream.count(j), len(stream)))
            for j in range(n_values)
        ]
        worst.append(max(gaps))
        variation.append(sum(gaps, Fraction(0)) / 2)
    return starts, worst, variation
