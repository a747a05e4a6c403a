"""Compares batches of an order with another order around the same point: the hot loop of `core.measure.schedule`.

Letters: N runs of tokens in order, J trait values, B batches, W tokens of the other order around a point.

Algebra. With n_j the tokens of value j in a batch of n tokens, m_j those in the W tokens of the other order around the
batch's middle, and p_j the whole's shares:

    tv = sum_j max(0, n_j / n - m_j / W)        moved = sum_j max(0, m_j / W - p_j)

Only the values in a batch add to the first sum. The second changes with the values that enter and leave the W tokens.

Guarantee: tokens are counted in int64; equal to the twin in `tests/twins/schedule.py`.
Cost: O(N + B) time, O(J) memory beside the inputs. One thread.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]


@kernel
def point_deviations(
    tokens: Ints,
    codes: Codes,
    edges: Ints,
    plain_tokens: Ints,
    plain_codes: Codes,
    window: int,
    share: Floats,
) -> tuple[Floats, Floats]:
    """tv, moved: float64 (B,) each, of the batches of tokens [edges[i], edges[i + 1]).

    tokens, plain_tokens int64 (N,) of two orders of the same tokens; codes, plain_codes int32 (N,) in [0, J); edges
    int64 (B + 1,), never falling; window: W, at least 1 and at most all tokens. At both ends the W tokens begin or end
    with the data. share: p, float64 (J,). A batch without tokens has tv 0.
    """
    batches = edges.shape[0] - 1
    total = plain_tokens.sum()
    tv = np.zeros(batches)
    moved = np.zeros(batches)
    around = np.zeros(share.shape[0], np.int64)
    inside = np.zeros(share.shape[0], np.int64)
    met = np.empty(share.shape[0], np.int64)
    # For the end and for the beginning of the W tokens: its run, the end of that run, and the token.
    run = np.zeros(2, np.int64)
    after = np.full(2, plain_tokens[0] if plain_tokens.shape[0] else 0)
    position = np.zeros(2, np.int64)
    place, left = 0, tokens[0] if tokens.shape[0] else 0
    at = 0
    excess = 0.0
    for i in range(batches):
        low = min(max((edges[i] + edges[i + 1] - window) // 2, 0), total - window)
        for side in range(2):
            goal = low + window if side == 0 else low
            sign = 1 if side == 0 else -1
            while position[side] < goal:
                stop = min(goal, after[side])
                f = plain_codes[run[side]]
                excess -= max(0.0, around[f] / window - share[f])
                around[f] += sign * (stop - position[side])
                excess += max(0.0, around[f] / window - share[f])
                position[side] = stop
                if stop == after[side] and run[side] + 1 < plain_tokens.shape[0]:
                    run[side] += 1
                    after[side] += plain_tokens[run[side]]
        moved[i] = max(0.0, excess)
        count = 0
        while at < edges[i + 1]:
            take = min(left, edges[i + 1] - at)
            if take > 0 and at >= edges[i]:
                f = codes[place]
                if inside[f] == 0:
                    met[count] = f
                    count += 1
                inside[f] += take
            at += take
            left -= take
            if left == 0 and place + 1 < tokens.shape[0]:
                place += 1
                left = tokens[place]
        size = edges[i + 1] - edges[i]
        for j in range(count):
            f = met[j]
            tv[i] += max(0.0, inside[f] / size - around[f] / window)
            inside[f] = 0
    return tv, moved
