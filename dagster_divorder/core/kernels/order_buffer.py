"""The balanced buffer: of the C items that it holds, the one goes that keeps the running mix nearest to its target.

Letters: C slots, E entries an item at most, J trait values, G groups, D dense coordinates.

An item a is a row of amounts c_j, with l_g their sum in group g. With r_j the share that is asked for, the row centred
is a_j = c_j - r_j l_g, and the deviation of what is handed out is D <- keep D + a. A candidate scores

    <D, a> + SELF_WEIGHT |a|^2 / 2
        = sum_j w_g c_j (D_j - sum_{i in g} D_i r_i) + SELF_WEIGHT / 2 sum_g w_g (sum_j c_j^2 - 2 l_g u_g + l_g^2 Q_g),
    u_g = sum_{j in g} c_j r_j,    Q_g = sum_{j in g} r_j^2.

Arithmetic is float64, in one thread, in an order that depends on the input alone. Twin: tests/twins/balanced_buffer.py.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]

SELF_WEIGHT = 0.5
"""As in `balanced`: with 1 what is of one value only waits, with 0 it goes first."""

MOST_WAIT = 8
"""An item that has waited until as many times C others went in front of it goes next."""

MOST = 1.25
"""Times its share in the buffer that a value is asked for at most: one that does not come any more has to last. 40,000
items of 30 values, 1,024 held, mean distance of batches of 256 and worst of the last four, beside a shuffle buffer: in
random order 0.036 and 0.105 (0.118, 0.122), in blocks of 16 0.142 and 0.195 (0.188, 0.190), sorted 0.824 (0.819), from
one mix to another 0.166 and 0.355 (0.206, 0.314). With 2: 0.036 and 0.201, 0.127 and 0.250, 0.832, 0.175 and 0.460."""

ROUNDING = 1e-12

NORM_CLASSES = 16
"""Half octaves of a row's norm, a group of its own: what is large in some trait comes evenly."""


class Slots(NamedTuple):
    """What is held, in the first of the slots. number int64 (C,): which item, counted as they come. entries int32 (C,);
    value int32 and amount float64 (C, E): its row. lengths float64 (C, G); dense float64 (C, D). norm int32 (C,): the
    trait value of its norm, -1 as long as that is unknown. single bool (C,): whether it has one value of each group."""

    number: Ints
    entries: Codes
    value: Codes
    amount: Floats
    lengths: Floats
    dense: Floats
    norm: Codes
    single: NDArray[np.bool_]


class Sums(NamedTuple):
    """What has passed. deviation float64 (J,); dense float64 (D,); seen, held float64 (J,): what came, what is held;
    norms float64 (2,): sum and number of the norms that were looked at; counts int64 (2,): items that came, that went.
    """

    deviation: Floats
    dense: Floats
    seen: Floats
    held: Floats
    norms: Floats
    counts: Ints


class Mix(NamedTuple):
    """What is asked for. groups int32 (J,); weights float64 (G,); target float64 (J,), shares of a group that sum to 1,
    NaN where they are those of all that came. norm: the first of the NORM_CLASSES values of the last group, -1 without
    them. keep: what is left of a deviation after one more item. seed: of the order of equal items."""

    groups: Codes
    weights: Floats
    target: Floats
    norm: int
    keep: float
    seed: int


@njit(cache=True, nogil=True)
def _lot(seed: int, number: int) -> np.uint64:
    """A random number of an item (splitmix64)."""
    z = np.uint64(seed) + (np.uint64(number) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def pass_through(
    queue: Ints,
    indptr: Ints,
    indices: Codes,
    data: NDArray[np.generic],
    dense: NDArray[np.floating],
    mix: Mix,
    slots: Slots,
    sums: Sums,
    ended: bool,
    out: Ints,
) -> int:
    """Let the items `queue`, int64 (n,), rows of a CSR matrix and of dense (M, D), come in. Each time that no slot is
    free one goes out; once all are in, and `ended`, what is held goes out too. Writes the numbers of those that go,
    counted as they came, into out, int64 (n + C,), and returns how many they are.

    O(J + C E) an item.
    """
    capacity = slots.number.shape[0]
    n_groups = mix.weights.shape[0]
    n_values = mix.groups.shape[0]
    seen_of = np.zeros(n_groups)
    held_of = np.zeros(n_groups)
    for j in range(n_values):
        seen_of[mix.groups[j]] += sums.seen[j]
        held_of[mix.groups[j]] += sums.held[j]
    held = sums.counts[0] - sums.counts[1]
    shares = np.empty(n_values)
    pull = np.empty(n_values)
    own = np.empty(n_values)
    mean = np.empty(n_groups)
    squares = np.empty(n_groups)
    coming = going = 0
    while True:
        while held < capacity and coming < queue.shape[0]:
            _take_in(queue[coming], held, indptr, indices, data, dense, mix, slots, sums, seen_of, held_of)
            coming += 1
            held += 1
        draining = held < capacity
        if held == 0 or (draining and not ended):
            return going

        # At the end the buffer's own mix is all that is left.
        _ask(1.0 if draining else MOST, mix, sums, seen_of, held_of, shares)
        mean.fill(0.0)
        squares.fill(0.0)
        for j in range(n_values):
            mean[mix.groups[j]] += sums.deviation[j] * shares[j]
            squares[mix.groups[j]] += shares[j] * shares[j]
        if mix.norm >= 0:
            _add_norms(held, mix, slots, sums, shares, squares, seen_of, held_of)

        best = 0
        for slot in range(1, held):
            if slots.number[slot] < slots.number[best]:
                best = slot
        has_waited = sums.counts[1] >= slots.number[best] + MOST_WAIT * capacity
        if not has_waited:
            for j in range(n_values):
                g = mix.groups[j]
                pull[j] = mix.weights[g] * (sums.deviation[j] - mean[g])
                own[j] = SELF_WEIGHT * mix.weights[g] * (0.5 + 0.5 * squares[g] - shares[j])
            best = _least(held, mix, slots, sums, shares, squares, pull, own)
        out[going] = slots.number[best]
        going += 1
        _hand_out(best, mix, slots, sums, shares, held_of)
        held -= 1
        if best < held:
            _move(slots, held, best)


@njit(cache=True, nogil=True)
def _take_in(
    item: int,
    slot: int,
    indptr: Ints,
    indices: Codes,
    data: NDArray[np.generic],
    dense: NDArray[np.floating],
    mix: Mix,
    slots: Slots,
    sums: Sums,
    seen_of: Floats,
    held_of: Floats,
) -> None:
    """Copies the row of an item into a slot, and adds it to what came and what is held."""
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
        seen_of[mix.groups[j]] += amount
        held_of[mix.groups[j]] += amount
    slots.single[slot] = single
    for d in range(slots.dense.shape[1]):
        slots.dense[slot, d] = dense[item, d]


# Inlined, as `_hand_out` is: calls at every item cost 8 % of the time.
@njit(cache=True, nogil=True, inline="always")
def _least(
    held: int,
    mix: Mix,
    slots: Slots,
    sums: Sums,
    shares: Floats,
    squares: Floats,
    pull: Floats,
    own: Floats,
) -> int:
    """The slot with the least score; of equal ones the one that is drawn first."""
    best = 0
    least = np.inf
    lot = np.uint64(0)
    for slot in range(held):
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
def _hand_out(slot: int, mix: Mix, slots: Slots, sums: Sums, shares: Floats, held_of: Floats) -> None:
    """Adds the item of a slot to what has passed, and takes it out of what is held."""
    sums.counts[1] += 1
    for j in range(mix.groups.shape[0]):
        change = shares[j] * slots.lengths[slot, mix.groups[j]]
        sums.deviation[j] = mix.keep * sums.deviation[j] - change
    for k in range(slots.entries[slot]):
        j = slots.value[slot, k]
        sums.deviation[j] += slots.amount[slot, k]
        sums.held[j] -= slots.amount[slot, k]
        held_of[mix.groups[j]] -= slots.amount[slot, k]
    for d in range(slots.dense.shape[1]):
        sums.dense[d] = mix.keep * sums.dense[d] + slots.dense[slot, d]


@njit(cache=True, nogil=True)
def _ask(most: float, mix: Mix, sums: Sums, seen_of: Floats, held_of: Floats, shares: Floats) -> None:
    """Write the shares that are asked for: the target's, but none above `most` times its share of what is held. The
    values that are held beyond that share out what is left."""
    asked = np.zeros(held_of.shape[0])
    room = np.zeros(held_of.shape[0])
    for again in range(2):
        for j in range(shares.shape[0]):
            g = mix.groups[j]
            share = mix.target[j]
            if np.isnan(share):
                share = sums.seen[j] / seen_of[g] if seen_of[g] > 0.0 else 0.0
            at_most = most * sums.held[j] / held_of[g] if held_of[g] > 0.0 else share
            beyond = max(at_most - share, 0.0)
            if again == 0:
                shares[j] = min(share, at_most)
                asked[g] += shares[j]
                room[g] += beyond
            elif room[g] > 0.0:
                shares[j] += (1.0 - asked[g]) * beyond / room[g]


@njit(cache=True, nogil=True)
def _move(slots: Slots, source: int, to: int) -> None:
    """What is in one slot into another one."""
    slots.number[to] = slots.number[source]
    slots.entries[to] = slots.entries[source]
    slots.norm[to] = slots.norm[source]
    slots.single[to] = slots.single[source]
    for k in range(slots.entries[source]):
        slots.value[to, k] = slots.value[source, k]
        slots.amount[to, k] = slots.amount[source, k]
    slots.lengths[to] = slots.lengths[source]
    slots.dense[to] = slots.dense[source]


@njit(cache=True, nogil=True)
def _between(slot: int, mix: Mix, slots: Slots, shares: Floats, squares: Floats) -> float:
    """What SELF_WEIGHT |a|^2 / 2 has beyond its values taken one by one: the products of two values of a group."""
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


@njit(cache=True, nogil=True)
def _add_norms(
    held: int,
    mix: Mix,
    slots: Slots,
    sums: Sums,
    shares: Floats,
    squares: Floats,
    seen_of: Floats,
    held_of: Floats,
) -> None:
    """Give the items that have come since the last call one more entry: the class of their norm, as much as a mean item
    of group 0."""
    group = mix.weights.shape[0] - 1
    unit = seen_of[0] / sums.counts[0]
    for slot in range(held):
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
        # A row that is the mix itself has no norm but for rounding.
        norm = np.sqrt(square) if square > ROUNDING * whole else 0.0
        sums.norms[0] += norm
        sums.norms[1] += 1.0
        slots.amount[slot, slots.entries[slot]] = norm
    average = sums.norms[0] / sums.norms[1]
    for slot in range(held):
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
        seen_of[group] += unit
        held_of[group] += unit
