"""Hot loops of `core.measure`.

Letters: S sequences, Q entries, J values of a trait, K pieces of an order with one asked mix each, P windows, T tokens.
Guarantee: counts are int64; equal to the twins in `tests/twins/metrics.py`. One thread.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
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
            # The window begins where the one before ends.
            inside[:] = 0
            place[0], position[0] = place[1], position[1]
        for side in range(2):
            goal = starts[i] if side == 0 else ends[i]
            sign = -1 if side == 0 else 1
            while place[side] < goal:
                s = order[place[side]]
                for q in range(indptr[s], indptr[s + 1]):
                    inside[codes[q]] += sign * np.int64(tokens[q])
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
    times: Ints,
    stretch: Ints,
    n_values: int,
) -> tuple[Ints, Ints]:
    """(tokens of each value in each stretch, int64 (T, J), with sequence s of stretch[s] times[s] times; tokens of each
    sequence, int64 (S,)). Entries as for `window_deviations`."""
    totals = np.zeros((max(0, stretch.max()) + 1 if len(stretch) else 1, n_values), np.int64)
    size = np.zeros(len(stretch), np.int64)
    for s in range(len(stretch)):
        for q in range(indptr[s], indptr[s + 1]):
            totals[stretch[s], codes[q]] += times[s] * np.int64(tokens[q])
            size[s] += np.int64(tokens[q])
    return totals, size


@kernel
def slice_counts(tokens: Ints, codes: Codes, n_values: int, window: int) -> Ints:
    """int64 (W, J): tokens of each value in each `window` successive tokens of items laid end to end, the last partial
    window included. tokens int64 (N,), codes int32 (N,) in [0, J). O(N + W J)."""
    out = np.zeros((-(-tokens.sum() // window), n_values), np.int64)
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


@kernel
def copy_buckets(
    ids: NDArray[np.unsignedinteger], first: Ints, length: Ints, at: Ints, bits: int, out: NDArray[np.uint16]
) -> None:
    """out[at[q] + i] = the bucket, in [0, 2**bits), of the token ids[first[q] + i], for i in [0, length[q])."""
    shift = np.uint64(64 - bits)
    for q in range(first.shape[0]):
        for i in range(length[q]):
            out[at[q] + i] = np.uint16((np.uint64(ids[first[q] + i]) * SPREAD) >> shift)


@kernel
def count_buckets(buckets: NDArray[np.uint16], starts: Ints, n_values: int) -> tuple[Codes, Codes, Codes]:
    """Counts of each bucket in each sequence, CSR (indptr, indices, data) int32, by rising bucket: sequence s holds
    buckets[starts[s]:starts[s + 1]]. O(T + S J)."""
    sequences = starts.shape[0] - 1
    count = np.zeros(n_values, np.int32)
    indptr = np.zeros(sequences + 1, np.int32)
    for s in range(sequences):
        indptr[s + 1] = indptr[s]
        for t in range(starts[s], starts[s + 1]):
            indptr[s + 1] += 1 - count[buckets[t]]
            count[buckets[t]] = 1
        count[:] = 0
    indices = np.empty(indptr[-1], np.int32)
    data = np.empty(indptr[-1], np.int32)
    for s in range(sequences):
        for t in range(starts[s], starts[s + 1]):
            count[buckets[t]] += 1
        entry = indptr[s]
        for f in range(n_values):
            if count[f]:
                indices[entry] = f
                data[entry] = count[f]
                entry += 1
        count[:] = 0
    return indptr, indices, data
