"""Windows compared with a mix that changes from stretch to stretch: the hot loop of `core.measure.stretches`.

Letters: N documents in order, J trait values, K pieces of the order, each with one mix, P windows.

Algebra. With k the last piece that begins at or before token t, the mix asks for this many tokens of value j up to t:

    X_j(t) = reached_kj + (t - at_k) share_kj

so in the window [a, b) its share should be (X_j(b) - X_j(a)) / (b - a), and is n_j(a, b) / (b - a).

Guarantee: counts n_j are int64; equal to the twin in `tests/twins/metrics.py`.
Cost: O(N + P J) time, since every window wants other shares; O(J) memory beside the result. One thread.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class AskedMix(NamedTuple):
    """Piece k begins at token at[k] (float64 (K,), rising); reached, share float64 (K, J): the tokens asked before it,
    and the share in it."""

    at: Floats
    reached: Floats
    share: Floats


@kernel
def deviations(
    tokens: Ints, codes: NDArray[np.int32], mix: AskedMix, starts: Ints, ends: Ints
) -> tuple[Floats, Floats, Floats]:
    """worst, tv, l2: float64 (P,) each, of the windows [starts[i], ends[i]).

    tokens int64 (N,) in order, codes int32 (N,) in [0, J); starts, ends int64 (P,), never falling, starts[i] < ends[i].
    With g_j the difference between the module's two shares: worst = max_j |g_j|, tv = 1/2 sum_j |g_j|, l2^2 = sum_j
    g_j^2.
    """
    windows = starts.shape[0]
    worst = np.empty(windows, np.float64)
    tv = np.empty(windows, np.float64)
    l2 = np.empty(windows, np.float64)
    inside = np.zeros(mix.share.shape[1], np.int64)
    # For both ends of the window: its document, the end of that document, and the piece of the mix.
    document = np.zeros(2, np.int64)
    after = np.zeros(2, np.int64)
    piece = np.zeros(2, np.int64)
    position = np.zeros(2, np.int64)
    after[:] = tokens[0] if tokens.shape[0] else 0
    for i in range(windows):
        for side in range(2):
            goal = starts[i] if side == 0 else ends[i]
            sign = -1 if side == 0 else 1
            while position[side] < goal:
                stop = min(goal, after[side])
                inside[codes[document[side]]] += sign * (stop - position[side])
                position[side] = stop
                if stop == after[side] and document[side] + 1 < tokens.shape[0]:
                    document[side] += 1
                    after[side] += tokens[document[side]]
            while piece[side] + 1 < mix.at.shape[0] and mix.at[piece[side] + 1] <= goal:
                piece[side] += 1
        size = ends[i] - starts[i]
        a, b = piece[0], piece[1]
        x, y = starts[i] - mix.at[a], ends[i] - mix.at[b]
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
