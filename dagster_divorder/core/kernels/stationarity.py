"""Hot loops of `core.metrics.stationarity`.

Letters: S sequences, F values of a mix, g groups of neighbours in an order, T tokens, b bits of a bucket's number.
Twin: tests/twins/stationarity.py.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]

SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: its product with a token's number has well mixed high bits."""


@njit(cache=True, nogil=True)
def mix_distances(
    indptr: Codes, indices: Codes, data: Codes, whole: NDArray[np.float64], order: Ints, edges: Ints
) -> NDArray[np.float64]:
    """Total variation sum_f |p_f - whole_f| / 2 of the sequences order[edges[i]:edges[i + 1]], float64 (g,).

    p_f is the group's share of value f, by the CSR counts (S, F); a group without counts is at distance 0. whole (F,)
    sums to 1. Only values that a group has are looked at: the others add their own shares. O(entries + g + F).
    """
    sums = np.zeros(whole.shape[0], np.int64)
    met = np.empty(whole.shape[0], np.int64)
    out = np.zeros(edges.shape[0] - 1)
    for group in range(out.shape[0]):
        values = 0
        total = 0
        for place in range(edges[group], edges[group + 1]):
            s = order[place]
            for entry in range(indptr[s], indptr[s + 1]):
                if data[entry] == 0:
                    continue
                f = indices[entry]
                if sums[f] == 0:
                    met[values] = f
                    values += 1
                sums[f] += data[entry]
                total += data[entry]
        # What a group has too much of a value, it lacks of others.
        for i in range(values):
            f = met[i]
            out[group] += max(0.0, sums[f] / total - whole[f])
            sums[f] = 0
    return out


@njit(cache=True, nogil=True)
def copy_buckets(
    ids: NDArray[np.unsignedinteger], first: Ints, length: Ints, at: Ints, bits: int, out: NDArray[np.uint16]
) -> None:
    """out[at[q] + i] = the bucket, in [0, 2**b), of the token ids[first[q] + i], for i below length[q]."""
    shift = np.uint64(64 - bits)
    for q in range(first.shape[0]):
        for i in range(length[q]):
            out[at[q] + i] = np.uint16((np.uint64(ids[first[q] + i]) * SPREAD) >> shift)


@njit(cache=True, nogil=True)
def count_buckets(buckets: NDArray[np.uint16], starts: Ints, n_values: int) -> tuple[Codes, Codes, Codes]:
    """CSR (indptr, indices, data) int32 of how often each sequence has each bucket: sequence s holds
    buckets[starts[s]:starts[s + 1]]. Columns come as they are met. O(T)."""
    sequences = starts.shape[0] - 1
    met = np.full(n_values, -1, np.int64)
    indptr = np.zeros(sequences + 1, np.int32)
    for s in range(sequences):
        distinct = 0
        for t in range(starts[s], starts[s + 1]):
            if met[buckets[t]] != s:
                met[buckets[t]] = s
                distinct += 1
        indptr[s + 1] = indptr[s] + distinct
    indices = np.empty(indptr[-1], np.int32)
    data = np.zeros(indptr[-1], np.int32)
    place = np.full(n_values, -1, np.int64)
    for s in range(sequences):
        end = np.int64(indptr[s])
        begin = end
        for t in range(starts[s], starts[s + 1]):
            bucket = buckets[t]
            if place[bucket] < begin:
                place[bucket] = end
                indices[end] = bucket
                end += 1
            data[place[bucket]] += 1
    return indptr, indices, data
