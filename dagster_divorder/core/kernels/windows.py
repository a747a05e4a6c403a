"""Loops over token windows: the hot loops under `core.measure`.

All take documents in order, laid end to end: document d has `tokens[d]` tokens (int64 (N,), >= 0) and the trait value
`codes[d]` (int32 (N,), in [0, J)). A window is `window` successive tokens; a document that crosses a boundary counts on
each side with its tokens there, and a document without tokens is in no window. Sums are int64.

Guarantee: equal to the token-by-token twins in `tests/twins/metrics.py`. One thread, so the bytes never depend on the
number of threads. Callers check the arguments.
Cost: O(N + windows) time unless stated, O(J) scratch beside the output.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]


@kernel
def distinct_split(tokens: Ints, codes: Codes, n_values: int, window: int) -> Ints:
    """int64 (S,): out[i] = |{codes[d] : d has a token in [i*window, (i+1)*window)}|, the last, partial i too.

    A document covers the windows first..last. An earlier document can have had its value only in `first`, if it ended
    there: `met[value]` is the last window with the value.
    """
    total = 0
    for d in range(tokens.shape[0]):
        total += tokens[d]
    out = np.zeros(-(-total // window), np.int64)
    met = np.full(n_values, -1, np.int64)
    start = 0
    for d in range(tokens.shape[0]):
        if tokens[d] == 0:
            continue
        first = start // window
        last = (start + tokens[d] - 1) // window
        if met[codes[d]] != first:
            out[first] += 1
        for i in range(first + 1, last + 1):
            out[i] = 1
        met[codes[d]] = last
        start += tokens[d]
    return out


@kernel
def distinct_flush(tokens: Ints, codes: Codes, n_values: int, window: int) -> Ints:
    """int64 (S,): distinct values per sequence as Diversity-Ordered Training counts them.

    The open sequence has `filled` tokens and `distinct` values, marked by `met[value] == serial`. A document that fits
    joins. A document that does not fit closes the open sequence, if this has tokens, and starts its own: every `window`
    tokens close a sequence of one value, and the rest stays open. The last open sequence closes at the end.
    """
    bound = tokens.shape[0] + 1
    for d in range(tokens.shape[0]):
        bound += tokens[d] // window
    out = np.empty(bound, np.int64)
    met = np.full(n_values, -1, np.int64)
    closed = 0
    serial = 0
    filled = 0
    distinct = 0
    for d in range(tokens.shape[0]):
        if filled + tokens[d] <= window:
            filled += tokens[d]
        else:
            if filled > 0:
                out[closed] = distinct
                closed += 1
            for _ in range(tokens[d] // window):
                out[closed] = 1
                closed += 1
            filled = tokens[d] % window
            serial += 1
            distinct = 0
            if filled == 0:
                continue
        if met[codes[d]] != serial:
            met[codes[d]] = serial
            distinct += 1
    if distinct > 0:
        out[closed] = distinct
        closed += 1
    return out[:closed].copy()


@kernel
def window_deviations(
    tokens: Ints, codes: Codes, share: Floats, heaviest: Ints, window: int, windows: int
) -> tuple[Floats, Floats, Floats]:
    """worst, tv, l2: float64 (windows,) each, of the first `windows` full windows against `share` (J,), of sum 1.

    With q_j = tokens of value j in the window / window:
        worst = max_j |q_j - share_j|        tv = 1/2 sum_j |q_j - share_j| = sum_j max(0, q_j - share_j)
        l2^2 = sum_j (q_j - share_j)^2
    (both q and share sum to 1, so excess equals lack). Only present values are visited: absent values add nothing to
    the right-hand sum of tv, the heaviest of them decides the maximum, and their squared shares are all squares minus
    those of the present values. `heaviest` (J,) lists the values by falling share.
    """
    worst = np.empty(windows, np.float64)
    tv = np.empty(windows, np.float64)
    l2 = np.empty(windows, np.float64)
    inside = np.zeros(share.shape[0], np.int64)
    present = np.empty(share.shape[0], np.int64)
    squares = 0.0
    in_use = 0
    for j in range(share.shape[0]):
        squares += share[j] * share[j]
        in_use += share[j] > 0.0
    n_present = 0
    filled = 0
    done = 0
    for d in range(tokens.shape[0]):
        left = tokens[d]
        while left > 0 and done < windows:
            take = min(left, window - filled)
            if inside[codes[d]] == 0:
                present[n_present] = codes[d]
                n_present += 1
            inside[codes[d]] += take
            filled += take
            left -= take
            if filled < window:
                continue
            most = 0.0
            excess = 0.0
            square = 0.0
            absent = squares
            for j in heaviest:
                if inside[j] == 0:
                    most = share[j]
                    break
            for i in range(n_present):
                j = present[i]
                gap = inside[j] / window - share[j]
                most = max(most, abs(gap))
                excess += max(gap, 0.0)
                square += gap * gap
                absent -= share[j] * share[j]
                inside[j] = 0
            # If no value is absent, the remainder is rounding error.
            l2[done] = np.sqrt(square + (max(absent, 0.0) if n_present < in_use else 0.0))
            worst[done] = most
            tv[done] = excess
            done += 1
            n_present = 0
            filled = 0
    return worst, tv, l2


@kernel
def prefix_squares(tokens: Ints, codes: Codes, share: Floats, window: int) -> Floats:
    """sum_j (T_j(t) - share_j t)^2 at t = (i + 1) * window, the end of window i, float64 (S,).

    T_j(t) is the tokens of value j in [0, t). At the end of the data it is 0 by definition of the shares. O(N + S x J):
    it is computed again at each end, since an updated square would lose its digits to cancellation.
    """
    total = 0
    for d in range(tokens.shape[0]):
        total += tokens[d]
    squares = np.zeros(-(-total // window))
    seen = np.zeros(share.shape[0], np.int64)
    filled = 0
    i = 0
    for d in range(tokens.shape[0]):
        left = tokens[d]
        while left > 0 and i < squares.shape[0] - 1:
            take = min(left, window - filled)
            seen[codes[d]] += take
            filled += take
            left -= take
            if filled == window:
                square = 0.0
                for j in range(share.shape[0]):
                    gap = seen[j] - share[j] * ((i + 1) * window)
                    square += gap * gap
                squares[i] = square
                i += 1
                filled = 0
    return squares


@kernel
def window_counts(tokens: Ints, codes: Codes, n_values: int, window: int) -> Ints:
    """int64 (S, J): tokens of each value in each window, the last partial one included."""
    total = 0
    for d in range(tokens.shape[0]):
        total += tokens[d]
    out = np.zeros((-(-total // window), n_values), np.int64)
    i = 0
    filled = 0
    for d in range(tokens.shape[0]):
        left = tokens[d]
        while left > 0:
            take = min(left, window - filled)
            out[i, codes[d]] += take
            left -= take
            filled += take
            if filled == window:
                i += 1
                filled = 0
    return out
