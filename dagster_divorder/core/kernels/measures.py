"""Hot loops of `core.measure`.

Letters: S sequences, Q entries, J values of a trait, K pieces of an order with one asked mix each, P windows.
Guarantee: counts are int64; equal to the twins in `tests/twins/metrics.py`. One thread.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: its product with a token's number has well mixed high bits."""


class AskedMix(NamedTuple):
    """Piece k begins at token at[k] (float64 (K,), rising); reached, share float64 (K, J): the tokens asked before it,
    and the share in it. So up to token t the mix asks for X_j(t) = reached[k, j] + (t - at[k]) share[k, j] tokens, k
    the last piece with at[k] <= t."""

    at: Floats
    reached: Floats
    share: Floats


@kernel
def window_deviations(
    indptr: Ints,
    codes: NDArray[np.integer],
    tokens: NDArray[np.integer],
    order: Ints,
    mix: AskedMix,
    starts: Ints,
    ends: Ints,
) -> tuple[Floats, Floats, Floats]:
    """worst, tv, l2: float64 (P,) each, of the windows of the sequences order[starts[i]:ends[i]].

    Sequence s holds tokens[q] tokens of the value codes[q] in [0, J), for the entries q in indptr[s]:indptr[s + 1].
    starts, ends: int64 (P,), never falling. A window from token a to token b holds n_j of value j, and g_j = (n_j -
    X_j(b) + X_j(a)) / (b - a): worst = max_j |g_j|, tv = 1/2 sum_j |g_j|, l2^2 = sum_j g_j^2; 0 without tokens.
    O(Q + P J) time, O(J) memory beside the result.
    """
    windows = starts.shape[0]
    worst, tv, l2 = np.zeros(windows), np.zeros(windows), np.zeros(windows)
    inside = np.zeros(mix.share.shape[1], np.int64)
    # For both ends of the window: its place in the order, the tokens before it, and the piece of the mix.
    place, position, piece = np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64)
    for i in range(windows):
        if starts[i] == place[1]:
            inside[:] = 0
            place[0], position[0] = place[1], position[1]
        for side in range(2):
            goal = starts[i] if side == 0 else ends[i]
            while place[side] < goal:
                s = order[place[side]]
                for q in range(indptr[s], indptr[s + 1]):
                    inside[codes[q]] += (2 * side - 1) * np.int64(tokens[q])
                    position[side] += np.int64(tokens[q])
                place[side] += 1
            while piece[side] + 1 < mix.at.shape[0] and mix.at[piece[side] + 1] <= position[side]:
                piece[side] += 1
        size = position[1] - position[0]
        if size == 0:
            continue
        a, b = piece[0], piece[1]
        x, y = position[0] - mix.at[a], position[1] - mix.at[b]
        most, total, square = 0.0, 0.0, 0.0
        for j in range(inside.shape[0]):
            wanted = mix.reached[b, j] + y * mix.share[b, j] - mix.reached[a, j] - x * mix.share[a, j]
            gap = abs(inside[j] - wanted)
            most = max(most, gap)
            total += gap
            square += gap * gap
        worst[i] = most / size
        tv[i] = total / 2 / size
        l2[i] = np.sqrt(square) / size
    return worst, tv, l2


@kernel
def stretch_totals(
    indptr: Ints,
    codes: NDArray[np.integer],
    tokens: NDArray[np.integer],
    often: Ints,
    stretch: Ints,
    totals: Floats,
) -> None:
    """totals[stretch[s], codes[q]] += often[s] * tokens[q] for the entries q of each sequence s. often, stretch: int64
    (S,). totals: float64 (T, J)."""
    for s in range(indptr.shape[0] - 1):
        for q in range(indptr[s], indptr[s + 1]):
            totals[stretch[s], codes[q]] += often[s] * np.int64(tokens[q])


@kernel
def count_buckets(
    ids: NDArray[np.unsignedinteger],
    first: Ints,
    size: Ints,
    row: Ints,
    counts: NDArray[np.integer],
) -> None:
    """counts[row[q], b(ids[t])] += 1 for t in [first[q], first[q] + size[q]), for each run q of Q.

    counts: (S, B), B a power of two. b(i) is the high log2(B) bits of i * SPREAD mod 2**64.
    """
    shift = np.uint64(64 - np.int64(np.log2(counts.shape[1])))
    for q in range(first.shape[0]):
        for t in range(first[q], first[q] + size[q]):
            counts[row[q], (np.uint64(ids[t]) * SPREAD) >> shift] += 1
