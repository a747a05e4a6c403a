"""The balanced buffer: of its C items, hands out the one that keeps the running mix nearest to its target.

Letters: C slots, E entries an item at most, J trait values, G groups, D dense coordinates.

An item a is a row of amounts c_j, with l_g their sum in group g. With r_j the asked share, the centred row is a_j = c_j
- r_j l_g, and handing a out changes the deviation to D <- keep D + a. A candidate scores

    <D, a> + SELF_WEIGHT |a|^2 / 2
        = sum_j w_g c_j (D_j - sum_{i in g} D_i r_i) + SELF_WEIGHT / 2 sum_g w_g (sum_j c_j^2 - 2 l_g u_g + l_g^2 Q_g),
    u_g = sum_{j in g} c_j r_j,    Q_g = sum_{j in g} r_j^2.

Arithmetic is float64, in one thread, in an order that depends on the input alone. Twin: tests/twins/balanced_buffer.py.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel, kernel_part

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]

SELF_WEIGHT = 0.5
"""As in `balanced`: with 1, items of a single value wait; with 0 they go first."""

MOST_WAIT = 8
"""An item goes next after this many times C others have gone before it."""

MOST = 1.25
"""A value's asked share is at most this many times its share in the buffer, so that a value that stops coming lasts.
40,000 items of 30 values, 1,024 slots, mean distance of batches of 256 and worst of the last four, (shuffle buffer): in
random order 0.036 and 0.105 (0.118, 0.122), in blocks of 16 0.142 and 0.195 (0.188, 0.190), sorted 0.824 (0.819), from
one mix to another 0.166 and 0.355 (0.206, 0.314). With 2: 0.036 and 0.201, 0.127 and 0.250, 0.832, 0.175 and 0.460."""

ROUNDING = 1e-12

NORM_CLASSES = 16
"""Half octaves of a row's norm; they make a group of their own, so that items with one large trait come evenly."""


class Slots(NamedTuple):
    """The buffer's items, in its first slots. number int64 (C,): the item, counted on arrival. entries int32 (C,);
    value int32 and amount float64 (C, E): its row. lengths float64 (C, G); dense float64 (C, D). norm int32 (C,): the
    trait value of its norm, -1 while unknown. single bool (C,): whether it has at most one value a group."""

    number: Ints
    entries: Codes
    value: Codes
    amount: Floats
    lengths: Floats
    dense: Floats
    norm: Codes
    single: NDArray[np.bool_]


class Sums(NamedTuple):
    """Running sums. deviation float64 (J,) and dense float64 (D,) of items handed out; seen, held float64 (J,): amounts
    that have come in, and that are in the buffer; norms float64 (2,): sum and number of known norms; counts int64 (2,):
    items that have come in, and gone out."""

    deviation: Floats
    dense: Floats
    seen: Floats
    held: Floats
    norms: Floats
    counts: Ints


class BufferMix(NamedTuple):
    """The target. groups int32 (J,); weights float64 (G,); target float64 (J,), shares that sum to 1 in each group, NaN
    to use the shares of all items so far. norm: the first of the NORM_CLASSES values of the last group, -1 without that
    group. keep: the share of a deviation that remains one item later. seed: orders equal items."""

    groups: Codes
    weights: Floats
    target: Floats
    norm: int
    keep: float
    seed: int


@kernel_part
def _lot(seed: int, number: int) -> np.uint64:
    """A random number of an item (splitmix64)."""
    z = np.uint64(seed) + (np.uint64(number) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def pass_through(
    queue: Ints,
    indptr: Ints,
    indices: Codes,
    data: NDArray[np.generic],
    dense: NDArray[np.floating],
    mix: BufferMix,
    slots: Slots,
    sums: Sums,
    ended: bool,
    out: Ints,
) -> int:
    """Passes the items `queue`, int64 (n,), rows of a CSR matrix and of dense (M, D), through the buffer. Whenever no
    slot is free, one item goes out; after the last item, if `ended`, the buffer empties. Writes the numbers of outgoing
    items, counted on arrival, into out, int64 (n + C,), and returns how many there are.

    O(J + C E) an item.
    """
    capacity = slots.number.shape[0]
    n_groups = mix.weights.shape[0]
    n_values = mix.groups.shape[0]
    seen_of = np.zeros(n_groups)
    in_buffer = np.zeros(n_groups)
    filled = sums.counts[0] - sums.counts[1]
    shares = np.empty(n_values)
    pull = np.empty(n_values)
    own = np.empty(n_values)
    mean = np.empty(n_groups)
    squares = np.empty(n_groups)
    coming = going = 0
    while True:
        while filled < capacity and coming < queue.shape[0]:
            _take_in(queue[coming], filled, indptr, indices, data, dense, mix, slots, sums)
            coming += 1
            filled += 1
        draining = filled < capacity
        if filled == 0 or (draining and not ended):
            return going

        # Summed again each time, so that the order does not depend on the parts in which items come.
        seen_of.fill(0.0)
        in_buffer.fill(0.0)
        for j in range(n_values):
            seen_of[mix.groups[j]] += sums.seen[j]
            in_buffer[mix.groups[j]] += sums.held[j]
        # At the end only the buffer's own mix is left.
        _ask(1.0 if draining else MOST, mix, sums, seen_of, in_buffer, shares)
        mean.fill(0.0)
        squares.fill(0.0)
        for j in range(n_values):
            mean[mix.groups[j]] += sums.deviation[j] * shares[j]
            squares[mix.groups[j]] += shares[j] * shares[j]
        if mix.norm >= 0:
            _add_norms(filled, mix, slots, sums, shares, squares, seen_of[0])

        best = 0
        for slot in range(1, filled):
            if slots.number[slot] < slots.number[best]:
                best = slot
        has_waited = sums.counts[1] >= slots.number[best] + MOST_WAIT * capacity
        if not has_waited:
            for j in range(n_values):
                g = mix.groups[j]
                pull[j] = mix.weights[g] * (sums.deviation[j] - mean[g])
                own[j] = SELF_WEIGHT * mix.weights[g] * (0.5 + 0.5 * squares[g] - shares[j])
            best = _least(filled, mix, slots, sums, shares, squares, pull, own)
        out[going] = slots.number[best]
        going += 1
        _hand_out(best, mix, slots, sums, shares)
        filled -= 1
        if best < filled:
            _move(slots, filled, best)


@kernel_part
def _take_in(
    item: int,
    slot: int,
    indptr: Ints,
    indices: Codes,
    data: NDArray[np.generic],
    dense: NDArray[np.floating],
    mix: BufferMix,
    slots: Slots,
    sums: Sums,
) -> None:
    """Copies the row of an item into a slot, and adds it to the sums."""
    slots.number[slot] = sums.counts[0]
    sums.counts[0] += 1
    slots.norm[slot] = -1
    slots.lengths[slot] = 0.0
    first = indptr[item]
    slots.entries[slot] = indptr[item + 1] - first
    single = slots.entries[slot] <= mix.weights.shape[0]
    last = -1
    for k in range(slots.entries[slot]):
        j = indices[first + k]
        single &= mix.groups[j] > last
        last = mix.groups[j]
        amount = np.float64(data[first + k])
        slots.value[slot, k] = j
        slots.amount[slot, k] = amount
        slots.lengths[slot, mix.groups[j]] += amount
        sums.seen[j] += amount
        sums.held[j] += amount
    slots.single[slot] = single
    for d in range(slots.dense.shape[1]):
        slots.dense[slot, d] = dense[item, d]


# Inlined, like `_hand_out`: a call for every item costs 8 % of the time.
@njit(cache=True, nogil=True, inline="always")
def _least(
    filled: int,
    mix: BufferMix,
    slots: Slots,
    sums: Sums,
    shares: Floats,
    squares: Floats,
    pull: Floats,
    own: Floats,
) -> int:
    """The slot with the least score; of equal ones the first by lot."""
    best = 0
    least = np.inf
    lot = np.uint64(0)
    for slot in range(filled):
        score = 0.0
        for k in range(slots.entries[slot]):
            j = slots.value[slot, k]
            amount = slots.amount[slot, k]
            score += amount * (pull[j] + amount * own[j])
        if not slots.single[slot]:
            score += _between(slot, mix, slots, shares, squares)
        for d in range(slots.dense.shape[1]):
            value = slots.dense[slot, d]
            score += value * (sums.dense[d] + 0.5 * SELF_WEIGHT * value)
        if score <= least:
            drawn = _lot(mix.seed, slots.number[slot])
            if score < least or drawn < lot:
                best, least, lot = slot, score, drawn
    return best


@njit(cache=True, nogil=True, inline="always")
def _hand_out(slot: int, mix: BufferMix, slots: Slots, sums: Sums, shares: Floats) -> None:
    """Adds a slot's item to the deviation, and subtracts it from the buffer's sums."""
    sums.counts[1] += 1
    for j in range(mix.groups.shape[0]):
        change = shares[j] * slots.lengths[slot, mix.groups[j]]
        sums.deviation[j] = mix.keep * sums.deviation[j] - change
    for k in range(slots.entries[slot]):
        j = slots.value[slot, k]
        sums.deviation[j] += slots.amount[slot, k]
        sums.held[j] -= slots.amount[slot, k]
    for d in range(slots.dense.shape[1]):
        sums.dense[d] = mix.keep * sums.dense[d] + slots.dense[slot, d]


@kernel_part
def _ask(most: float, mix: BufferMix, sums: Sums, seen_of: Floats, in_buffer: Floats, shares: Floats) -> None:
    """Writes the asked shares: the target's, but at most `most` times the value's share in the buffer. Values that
    exceed their target in the buffer share the rest."""
    asked = np.zeros(in_buffer.shape[0])
    room = np.zeros(in_buffer.shape[0])
    for again in range(2):
        for j in range(shares.shape[0]):
            g = mix.groups[j]
            share = mix.target[j]
            if np.isnan(share):
                share = sums.seen[j] / seen_of[g] if seen_of[g] > 0.0 else 0.0
            at_most = most * sums.held[j] / in_buffer[g] if in_buffer[g] > 0.0 else share
            beyond = max(at_most - share, 0.0)
            if again == 0:
                shares[j] = min(share, at_most)
                asked[g] += shares[j]
                room[g] += beyond
            elif room[g] > 0.0:
                shares[j] += (1.0 - asked[g]) * beyond / room[g]


@kernel_part
def _move(slots: Slots, source: int, to: int) -> None:
    """Copies one slot into another."""
    slots.number[to] = slots.number[source]
    slots.entries[to] = slots.entries[source]
    slots.norm[to] = slots.norm[source]
    slots.single[to] = slots.single[source]
    for k in range(slots.entries[source]):
        slots.value[to, k] = slots.value[source, k]
        slots.amount[to, k] = slots.amount[source, k]
    slots.lengths[to] = slots.lengths[source]
    slots.dense[to] = slots.dense[source]


@kernel_part
def _between(slot: int, mix: BufferMix, slots: Slots, shares: Floats, squares: Floats) -> float:
    """The part of SELF_WEIGHT |a|^2 / 2 from products of two values of a group."""
    beyond = 0.0
    for g in range(mix.weights.shape[0]):
        beyond += 0.5 * mix.weights[g] * slots.lengths[slot, g] ** 2 * squares[g]
    for k in range(slots.entries[slot]):
        j = slots.value[slot, k]
        g = mix.groups[j]
        amount = slots.amount[slot, k]
        others = slots.lengths[slot, g] - amount
        beyond -= mix.weights[g] * amount * (0.5 * amount * squares[g] + others * shares[j])
    return SELF_WEIGHT * beyond


@kernel_part
def _add_norms(
    filled: int,
    mix: BufferMix,
    slots: Slots,
    sums: Sums,
    shares: Floats,
    squares: Floats,
    seen: float,
) -> None:
    """Gives items that came since the last call one more entry: the class of their norm, with the amount of a mean item
    in group 0."""
    group = mix.weights.shape[0] - 1
    unit = seen / sums.counts[0]
    for slot in range(filled):
        if slots.norm[slot] >= 0:
            continue
        square = whole = 0.0
        for g in range(group):
            square += mix.weights[g] * slots.lengths[slot, g] ** 2 * squares[g]
        for k in range(slots.entries[slot]):
            j = slots.value[slot, k]
            g = mix.groups[j]
            amount = slots.amount[slot, k]
            square += mix.weights[g] * amount * (amount - 2.0 * slots.lengths[slot, g] * shares[j])
            whole += mix.weights[g] * amount * amount
        # The norm of a row equal to the mix is only rounding error.
        norm = np.sqrt(square) if square > ROUNDING * whole else 0.0
        sums.norms[0] += norm
        sums.norms[1] += 1.0
        slots.amount[slot, slots.entries[slot]] = norm
    average = sums.norms[0] / sums.norms[1]
    for slot in range(filled):
        if slots.norm[slot] >= 0:
            continue
        last = slots.entries[slot]
        norm = slots.amount[slot, last]
        of_mean = 2.0 * np.log2(norm / average) if norm > 0.0 else -np.inf
        number = int(min(max(np.rint(of_mean) + NORM_CLASSES // 2, 0.0), NORM_CLASSES - 1.0))
        slots.norm[slot] = mix.norm + number
        slots.value[slot, last] = mix.norm + number
        slots.amount[slot, last] = unit
        slots.lengths[slot, group] = unit
        slots.entries[slot] += 1
        for sum_ in (sums.seen, sums.held):
            sum_[mix.norm + number] += unit
