"""Hot loops of `core.measure.stationarity`.

Letters: S sequences, F values of a mix, g parts of an order, L groupings of them, each in at most G groups of
neighbours, M mixes, T tokens, b bits of a bucket's number.
Twin: tests/twins/stationarity.py.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Narrow = NDArray[np.integer]
"""uint16 if all fit, else int32."""
Doubles = NDArray[np.float64]

SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: its product with a token's number has well mixed high bits."""


@kernel
def mix_distances(
    indptr: Codes,
    indices: Narrow,
    data: Narrow,
    mixes: tuple[Ints, Ints, Doubles],
    n_values: int,
    order: Ints,
    edges: Ints,
    groups: Ints,
    mix_of: Ints,
) -> NDArray[np.float64]:
    """Total variation sum_f |p_f - mix_f| / 2 of each group of each of L groupings, float64 (L, G).

    The sequences order[edges[i]:edges[i + 1]] belong to group groups[l, i], which rises with i from 0, or to none (-1);
    p_f is a group's share of value f in [0, F), by the CSR counts (S, F); a group without counts has distance 0. mixes:
    CSR (M, F) as (indptr, indices, data), whose rows sum to 1; group g of grouping l is compared with row mix_of[l, g].
    Only the values of a group are visited. The entries are read once for all groupings. O(entries + L g F), plus the
    entries of a mix whenever it differs from the mix of the group before.
    """
    levels, parts = groups.shape
    whole = np.zeros(n_values)
    loaded = -1
    part = np.zeros(n_values, np.int64)
    in_part = np.empty(n_values, np.int64)
    sums = np.zeros((levels, n_values), np.int64)
    met = np.empty((levels, n_values), np.int64)
    values = np.zeros(levels, np.int64)
    most = 0
    for level in range(levels):
        for i in range(parts):
            most = max(most, groups[level, i] + 1)
    out = np.zeros((levels, most))
    for i in range(parts):
        count = 0
        for place in range(edges[i], edges[i + 1]):
            s = order[place]
            for entry in range(indptr[s], indptr[s + 1]):
                if data[entry] == 0:
                    continue
                f = indices[entry]
                if part[f] == 0:
                    in_part[count] = f
                    count += 1
                part[f] += data[entry]
        for level in range(levels):
            group = groups[level, i]
            if group < 0:
                continue
            for j in range(count):
                f = in_part[j]
                if sums[level, f] == 0:
                    met[level, values[level]] = f
                    values[level] += 1
                sums[level, f] += part[f]
            if i + 1 < parts and groups[level, i + 1] == group:
                continue
            if mix_of[level, group] != loaded:
                if loaded >= 0:
                    for entry in range(mixes[0][loaded], mixes[0][loaded + 1]):
                        whole[mixes[1][entry]] = 0.0
                loaded = mix_of[level, group]
                for entry in range(mixes[0][loaded], mixes[0][loaded + 1]):
                    whole[mixes[1][entry]] = mixes[2][entry]
            total = 0
            for j in range(values[level]):
                total += sums[level, met[level, j]]
            # A group's excess of its values equals its lack of the others.
            for j in range(values[level]):
                f = met[level, j]
                out[level, group] += max(0.0, sums[level, f] / total - whole[f])
                sums[level, f] = 0
            values[level] = 0
        for j in range(count):
            part[in_part[j]] = 0
    return out


@kernel
def copy_buckets(
    ids: NDArray[np.unsignedinteger], first: Ints, length: Ints, at: Ints, bits: int, out: NDArray[np.uint16]
) -> None:
    """out[at[q] + i] = the bucket, in [0, 2**b), of the token ids[first[q] + i], for i in [0, length[q])."""
    shift = np.uint64(64 - bits)
    for q in range(first.shape[0]):
        for i in range(length[q]):
            out[at[q] + i] = np.uint16((np.uint64(ids[first[q] + i]) * SPREAD) >> shift)


@kernel
def count_buckets(buckets: NDArray[np.uint16], starts: Ints, n_values: int) -> tuple[Codes, Codes, Codes]:
    """Counts of each bucket in each sequence, CSR (indptr, indices, data) int32, by rising bucket: sequence s holds
    buckets[starts[s]:starts[s + 1]]. O(T + S F)."""
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


@kernel
def share_moments(
    indptr: Codes, indices: Narrow, data: Narrow, n_values: int
) -> tuple[Doubles, Ints, Doubles, Doubles]:
    """From the CSR counts (S, F): (the total of each sequence, float64 (S,), at least 1; the sums over sequences of
    each value's count, int64 (F,), of its share, and of its square, float64 (F,) each). O(entries)."""
    totals = np.ones(indptr.shape[0] - 1)
    counts = np.zeros(n_values, np.int64)
    sums = np.zeros(n_values)
    squares = np.zeros(n_values)
    for s in range(totals.shape[0]):
        total = np.int64(0)
        for entry in range(indptr[s], indptr[s + 1]):
            total += data[entry]
        totals[s] = max(total, 1)
        for entry in range(indptr[s], indptr[s + 1]):
            share = data[entry] / totals[s]
            counts[indices[entry]] += data[entry]
            sums[indices[entry]] += share
            squares[indices[entry]] += share * share
    return totals, counts, sums, squares


@kernel
def add_columns(indptr: Codes, indices: Narrow, data: Narrow, column: Codes, out: Doubles) -> None:
    """Adds to out[c, s] the counts of sequence s at the value f with column[f] == c; -1 skips a value.

    Reads the CSR counts (S, F), column (F,); writes out (C, S). O(entries)."""
    for s in range(indptr.shape[0] - 1):
        for entry in range(indptr[s], indptr[s + 1]):
            c = column[indices[entry]]
            if c >= 0:
                out[c, s] += data[entry]
