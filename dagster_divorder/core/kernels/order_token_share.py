"""The second seed's idea 1, exact, for `token_share_greedy`.

With W all tokens, W_c those of label c, S and T_c those placed, the objective of item d of label c times W is

    |X_c + l_d A_c|,    X_c = T_c W - W_c S,    A_c = W - W_c >= 0,

a whole number below W^2 < 2^124: signed 128-bit arithmetic on two uint64 limbs compares it exactly. It falls and then
rises in l_d, so a label's best item is the last with X_c + l A_c < 0 or the first with X_c + l A_c >= 0. Where one
label has all tokens (A_c = 0) every item scores 0 at every step, and items go as they come.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dagster_divorder.core.kernels.order_runs import open_at_or_below, root, take

Ints = NDArray[np.int64]
Limbs = NDArray[np.uint64]

ZERO = np.uint64(0)
ONE = np.uint64(1)
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
SIGN = np.uint64(1 << 63)


@njit(cache=True, nogil=True)
def multiply(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    """(high, low) limbs of a b, by halves of 32 bits."""
    a0, a1, b0, b1 = a & LOW, a >> HALF, b & LOW, b >> HALF
    middle = a1 * b0 + ((a0 * b0) >> HALF)
    other = a0 * b1 + (middle & LOW)
    return a1 * b1 + (middle >> HALF) + (other >> HALF), a * b


@njit(cache=True, nogil=True)
def add(high: np.uint64, low: np.uint64, high2: np.uint64, low2: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Sum modulo 2^128 (two's complement)."""
    total = low + low2
    return high + high2 + (ONE if total < low else ZERO), total


@njit(cache=True, nogil=True)
def negate(high: np.uint64, low: np.uint64) -> tuple[np.uint64, np.uint64]:
    return add(~high, ~low, ZERO, ONE)


@njit(cache=True, nogil=True)
def nearest_to_share(items: Ints, first: Ints, lengths: Ints, of_label: Ints) -> Ints:
    """The order, int64 (M,). Arguments: a `core.order.runs.Runs`, not written. O(M K log R) time, O(M) memory."""
    runs = lengths.shape[0]
    labels = of_label.shape[0] - 1
    below = np.arange(runs + 1)
    above = np.arange(runs + 1)
    head = first[:-1].copy()
    tokens = np.zeros(labels, np.int64)
    for k in range(labels):
        for r in range(of_label[k], of_label[k + 1]):
            tokens[k] += lengths[r] * (first[r + 1] - first[r])
    total = tokens.sum()
    if tokens.max() == total:
        return np.arange(items.shape[0])
    x_high = np.zeros(labels, np.uint64)
    x_low = np.zeros(labels, np.uint64)
    out = np.empty(items.shape[0], np.int64)
    for t in range(out.shape[0]):
        best = -1
        best_high = best_low = ZERO
        for k in range(labels):
            start, end = of_label[k], of_label[k + 1]
            slope = np.uint64(total - tokens[k])
            # The first run whose X + l A is not negative; runs start..rise-1 are below it.
            rise, stop = start, end
            while rise < stop:
                middle = (rise + stop) // 2
                high, low = multiply(slope, np.uint64(lengths[middle]))
                high, low = add(x_high[k], x_low[k], high, low)
                if high & SIGN:
                    rise = middle + 1
                else:
                    stop = middle
            for side in range(2):
                r = open_at_or_below(below, rise - 1) if side == 0 else root(above, rise)
                if r < start or r >= end:
                    continue
                high, low = multiply(slope, np.uint64(lengths[r]))
                high, low = add(x_high[k], x_low[k], high, low)
                if high & SIGN:
                    high, low = negate(high, low)
                if (
                    best < 0
                    or high < best_high
                    or (high == best_high and low < best_low)
                    or (high == best_high and low == best_low and items[head[r]] < items[head[best]])
                ):
                    best, best_high, best_low = r, high, low
        place = take(best, head, first, below, above)
        out[t] = items[place]
        length = np.uint64(lengths[best])
        for k in range(labels):
            high, low = multiply(np.uint64(tokens[k]), length)
            high, low = negate(high, low)
            x_high[k], x_low[k] = add(x_high[k], x_low[k], high, low)
            if of_label[k] <= best < of_label[k + 1]:
                high, low = multiply(np.uint64(total), length)
                x_high[k], x_low[k] = add(x_high[k], x_low[k], high, low)
    return out
