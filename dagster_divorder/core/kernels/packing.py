"""Packs runs of tokens into sequences: the hot loops under `core.packing`.

Letters: P pieces, Q runs, S sequences, L tokens a sequence, N documents, J trait values of one trait.

A run is the tokens of one piece (of one document) inside one sequence. Sequence s holds the runs
indptr[s]:indptr[s+1]. Whole numbers only, one thread: the same bytes every time. Arguments are only read unless stated,
and nothing is checked here. The twins are in `tests/twins/packing.py`.
"""

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Ints = NDArray[np.int64]


@kernel
def best_fit(length: Ints, turns: Ints, copy: Ints, sequence_length: int) -> tuple[Ints, int]:
    """(sequence int64 (Q,) of each run, number of sequences): each run goes to the open sequence with the least room
    that fits.

    length int64 (Q,), in 1..L; turns int64 (Q,), the runs in packing order. copy int64 (Q,): successive runs in `turns`
    with equal numbers go to different sequences; a sequence that took one is closed until the last of them is packed.
    Of sequences with equal room, the last one filled takes the run. Sequences with room r are a stack, top[r]; a binary
    tree over the rooms 1..L (leaf r at size + r) marks nodes above stacks that are not empty. One climb and one descent
    find the least room >= x. O(Q log L) time, O(Q + L) scratch.
    """
    size = 1
    while size <= sequence_length:
        size *= 2
    has_room = np.zeros(2 * size, np.bool_)
    top = np.full(sequence_length + 1, -1, np.int64)
    under = np.empty(length.shape[0], np.int64)
    sequence = np.empty(length.shape[0], np.int64)
    room_left = np.empty(length.shape[0], np.int64)
    opened = 0
    waiting = 0
    for i in range(turns.shape[0]):
        run = turns[i]
        if i > 0 and copy[run] != copy[turns[i - 1]]:
            for earlier in range(waiting, i):
                s = sequence[turns[earlier]]
                room = room_left[s]
                if room > 0:
                    under[s] = top[room]
                    top[room] = s
                    node = size + room
                    while node >= 1 and not has_room[node]:
                        has_room[node] = True
                        node //= 2
            waiting = i
        node = size + length[run]
        while node > 1 and not has_room[node]:
            # A left child's sibling holds the next larger rooms; a right child has no such sibling, so climb.
            while node > 1 and node % 2 == 1:
                node //= 2
            if node > 1:
                node += 1
        if node > 1:
            while node < size:
                node *= 2
                if not has_room[node]:
                    node += 1
            room = node - size
            s = top[room]
            top[room] = under[s]
            if top[room] < 0:
                has_room[node] = False
                node //= 2
                while node >= 1 and has_room[node] and not (has_room[2 * node] or has_room[2 * node + 1]):
                    has_room[node] = False
                    node //= 2
        else:
            room = sequence_length
            s = opened
            opened += 1
        sequence[run] = s
        room_left[s] = room - length[run]
    return sequence, opened


@kernel
def nearest_first_path(neighbour: Ints, cosine: NDArray[np.float32]) -> Ints:
    """A path over all n points, int64 (n,). neighbour, cosine (n, k): each point's nearest points, maybe itself.

    From point 0 on, the unvisited neighbour with the largest cosine is next (of equal ones, the smallest number). A
    point without unvisited neighbours is dropped, and the point before it is tried; if none is left, the first
    unvisited point is next. Each try lengthens the path or drops a point: O(n k).
    """
    n, k = neighbour.shape
    visited = np.zeros(n, np.bool_)
    path = np.empty(n, np.int64)
    asked = np.empty(n, np.int64)
    depth = 0
    lowest = 0
    for t in range(n):
        best = -1
        while best < 0 and depth > 0:
            at = asked[depth - 1]
            largest = -np.inf
            for i in range(k):
                other = neighbour[at, i]
                if other < 0 or visited[other]:
                    continue
                if cosine[at, i] > largest or (cosine[at, i] == largest and other < best):
                    best = other
                    largest = cosine[at, i]
            if best < 0:
                depth -= 1
        if best < 0:
            while visited[lowest]:
                lowest += 1
            best = lowest
        visited[best] = True
        path[t] = best
        asked[depth] = best
        depth += 1
    return path
