"""The balanced buffer: of its C items, hands out the one that keeps the running mix nearest to the mix so far.

Letters: C slots, E entries an item at most, J trait values, G groups.

An item a is a row of amounts c_j, with l_g their sum in group g. With r_j the asked share, the centred row is a_j = c_j
- r_j l_g, and handing a out changes the deviation to D <- keep D + a. A candidate scores

    <D, a> + SELF_WEIGHT |a|^2 / 2
        = sum_j w_g c_j (D_j - sum_{i in g} D_i r_i) + SELF_WEIGHT / 2 sum_g w_g (sum_j c_j^2 - 2 l_g u_g + l_g^2 Q_g),
    u_g = sum_{j in g} c_j r_j,    Q_g = sum_{j in g} r_j^2.

Guarantee: each item goes out once, before 8 C later ones; the same items and seed give the same order, in whatever
parts they come. Arithmetic is float64, in one thread. Cost: O(J + C E) an item. Known weakness: a stretch of one value
that is longer than the buffer. Measurements: docs/decisions/tables.md. Twin: tests/twins/balanced_buffer.py.
"""

from collections import namedtuple
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]

SELF_WEIGHT = 0.5  # As in `balanced`: with 1, items of a single value wait; with 0 they go first.
MOST_WAIT = 8  # An item goes next after this many times C others have gone before it.
MOST = 1.25  # Asked is at most this many times a value's share in the buffer, so that one that stops coming lasts.
MEMORY = (
    0.5  # After this many times C items a deviation has decayed to 1 / e: it can no longer be made up for.
)
NORM_CLASSES = 16  # Half octaves of a row's norm, balanced so that items with one large trait come evenly.
ROUNDING = 1e-12


Buffer = namedtuple(
    "Buffer",
    "slots number entries value amount lengths known single deviation seen held norms counts groups weights keep seed",
)
"""slots int64 (C,): the slot at each place; the first ones are filled. Of each slot: number int64, of its item, counted
on arrival; entries int64, value int32 (C, E), amount float64 (C, E): its row; lengths float64 (C, G): its sums; known
bool: whether its norm is among them; single bool: whether it has at most one value a group. float64 (J,): deviation of
items handed out; seen and held, what has come in and what is in the buffer. norms float64 (2,): sum and number of the
known; counts int64 (2,): items that have come in, and gone. groups int32 (J,); weights float64 (G,). The first
NORM_CLASSES values, in the last group, are the norms'. keep: what remains of a deviation one item later. seed: orders
equal items."""


def empty_buffer(capacity: int, weights: list[float], seed: int) -> Buffer:
    """weights: of the groups, the norms' last. The buffer knows no other value yet, and grows with them."""
    row, keep = (capacity, len(weights)), max(0.0, 1.0 - 1.0 / (MEMORY * capacity))
    shapes: list[tuple[Any, str]] = [
        (capacity, "i8"),
        (capacity, "i8"),
        (row, "i4"),
        (row, "f8"),
        (row, "f8"),
    ]
    shapes += [(capacity, "?"), (capacity, "?"), *[(NORM_CLASSES, "f8")] * 3, (2, "f8"), (2, "i8")]
    groups = np.full(NORM_CLASSES, len(weights) - 1, np.int32)
    arrays = (np.arange(capacity), *(np.zeros(shape, kind) for shape, kind in shapes), groups)
    return Buffer._make([*arrays, np.array(weights), keep, seed])


@kernel
def _lot(seed: int, number: int) -> np.uint64:
    """A random number of an item (splitmix64)."""
    z = np.uint64(seed) + (np.uint64(number) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def pass_through(indptr: Ints, indices: Codes, data: Floats, b: Buffer, ended: bool, out: Ints) -> int:
    """Passes n items, CSR rows, through the buffer. Whenever no slot is free, one item goes out; after the last item,
    if `ended`, the buffer empties. Writes the numbers of outgoing items into out, int64 (n + C,), and returns how many
    there are."""
    of_values = np.empty((3, b.groups.shape[0]))
    shares, pull, own = of_values[0], of_values[1], of_values[2]
    of_groups = np.empty((6, b.weights.shape[0]))
    seen, held, asked, room = of_groups[0], of_groups[1], of_groups[2], of_groups[3]
    mean, squares = of_groups[4], of_groups[5]
    capacity, filled = b.slots.shape[0], b.counts[0] - b.counts[1]
    coming = going = 0
    while True:
        while filled < capacity and coming < indptr.shape[0] - 1:
            slot, last = b.slots[filled], -1
            b.number[slot], b.entries[slot] = b.counts[0], indptr[coming + 1] - indptr[coming]
            b.lengths[slot], b.known[slot], b.single[slot] = 0.0, False, True
            for k in range(b.entries[slot]):
                j, amount = indices[indptr[coming] + k], data[indptr[coming] + k]
                b.single[slot] &= b.groups[j] > last
                last = b.groups[j]
                b.value[slot, k], b.amount[slot, k] = j, amount
                b.lengths[slot, last] += amount
                b.seen[j] += amount
                b.held[j] += amount
            b.counts[0] += 1
            coming += 1
            filled += 1
        draining = filled < capacity
        if filled == 0 or (draining and not ended):
            return going

        # Summed again each time, so that the order does not depend on the parts in which items come.
        of_groups[:] = 0.0
        for j in range(b.groups.shape[0]):
            seen[b.groups[j]] += b.seen[j]
            held[b.groups[j]] += b.held[j]
        # Asked is the mix of all items so far, but of a value at most MOST times its share in the buffer; values that
        # exceed theirs in the buffer share the rest. At the end only the buffer's own mix is left.
        for again in range(2):
            for j in range(b.groups.shape[0]):
                g = b.groups[j]
                share = b.seen[j] / seen[g] if seen[g] > 0.0 else 0.0
                at_most = (1.0 if draining else MOST) * b.held[j] / held[g] if held[g] > 0.0 else share
                beyond = max(at_most - share, 0.0)
                if again == 0:
                    shares[j] = min(share, at_most)
                    asked[g] += shares[j]
                    room[g] += beyond
                elif room[g] > 0.0:
                    shares[j] += (1.0 - asked[g]) * beyond / room[g]
        for j in range(b.groups.shape[0]):
            mean[b.groups[j]] += b.deviation[j] * shares[j]
            squares[b.groups[j]] += shares[j] * shares[j]
        _add_norms(b.slots[:filled], seen[0] / b.counts[0], shares, squares, b)

        best = 0
        for at in range(1, filled):
            if b.number[b.slots[at]] < b.number[b.slots[best]]:
                best = at
        if b.counts[1] < b.number[b.slots[best]] + MOST_WAIT * capacity:
            for j in range(b.groups.shape[0]):
                g = b.groups[j]
                pull[j] = b.weights[g] * (b.deviation[j] - mean[g])
                own[j] = SELF_WEIGHT * b.weights[g] * (0.5 + 0.5 * squares[g] - shares[j])
            best = _least(filled, shares, squares, pull, own, b)
        slot = b.slots[best]
        out[going] = b.number[slot]
        going += 1
        filled -= 1
        b.slots[best], b.slots[filled] = b.slots[filled], slot
        b.counts[1] += 1
        for j in range(b.groups.shape[0]):
            b.deviation[j] = b.keep * b.deviation[j] - shares[j] * b.lengths[slot, b.groups[j]]
        for k in range(b.entries[slot]):
            b.deviation[b.value[slot, k]] += b.amount[slot, k]
            b.held[b.value[slot, k]] -= b.amount[slot, k]


@njit(cache=True, nogil=True, inline="always")  # A call for every item costs 8 % of the time.
def _least(filled: int, shares: Floats, squares: Floats, pull: Floats, own: Floats, b: Buffer) -> int:
    """The place of the least score; of equal ones the first by lot."""
    best, least, lot = 0, np.inf, np.uint64(0)
    for at in range(filled):
        slot = b.slots[at]
        score = 0.0
        for k in range(b.entries[slot]):
            j, amount = b.value[slot, k], b.amount[slot, k]
            score += amount * (pull[j] + amount * own[j])
        if not b.single[slot]:
            # The part of SELF_WEIGHT |a|^2 / 2 from products of two values of a group.
            beyond = 0.0
            for g in range(b.weights.shape[0]):
                beyond += 0.5 * b.weights[g] * b.lengths[slot, g] ** 2 * squares[g]
            for k in range(b.entries[slot]):
                j, amount = b.value[slot, k], b.amount[slot, k]
                g = b.groups[j]
                others = b.lengths[slot, g] - amount
                beyond -= b.weights[g] * amount * (0.5 * amount * squares[g] + others * shares[j])
            score += SELF_WEIGHT * beyond
        if score <= least:
            drawn = _lot(b.seed, b.number[slot])
            if score < least or drawn < lot:
                best, least, lot = at, score, drawn
    return best


@kernel
def _add_norms(slots: Ints, unit: float, shares: Floats, squares: Floats, b: Buffer) -> None:
    """Gives items that came since the last call one more entry: the class of their norm, with the amount of a mean item
    in group 0."""
    group = b.weights.shape[0] - 1
    for slot in slots:
        if b.known[slot]:
            continue
        square = whole = 0.0
        for g in range(group):
            square += b.weights[g] * b.lengths[slot, g] ** 2 * squares[g]
        for k in range(b.entries[slot]):
            j, amount = b.value[slot, k], b.amount[slot, k]
            weight, length = b.weights[b.groups[j]], b.lengths[slot, b.groups[j]]
            square += weight * amount * (amount - 2.0 * length * shares[j])
            whole += weight * amount * amount
        # The norm of a row equal to the mix is only rounding error.
        b.lengths[slot, group] = np.sqrt(square) if square > ROUNDING * whole else 0.0
        b.norms[0] += b.lengths[slot, group]
        b.norms[1] += 1.0
    for slot in slots:
        if b.known[slot]:
            continue
        norm, last = b.lengths[slot, group], b.entries[slot]
        of_mean = 2.0 * np.log2(norm / (b.norms[0] / b.norms[1])) if norm > 0.0 else -np.inf
        number = int(min(max(np.rint(of_mean) + NORM_CLASSES // 2, 0.0), NORM_CLASSES - 1.0))
        b.known[slot], b.entries[slot] = True, last + 1
        b.value[slot, last], b.amount[slot, last], b.lengths[slot, group] = number, unit, unit
        b.seen[number] += unit
        b.held[number] += unit
