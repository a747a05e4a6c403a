"""Schedules: the rank of a score at each point of progress, when each item is due, and windows of items due together.

Letters: M items, P pieces, W windows.

Progress and rank run from 0 to 1, by token: a share r of the tokens has scores below rank r. A schedule passes the
ranking P times, each time through every P-th item. Items sorted by due time are the orders of the papers. Cut into
windows, each becomes a section (`core.order.sections`), and a strategy orders the items of a window: `random` is the
papers' window shuffle (jitter), `balanced` keeps the window's own mix throughout. The schedule decides that mix: a
source that correlates with the score moves with the score.

Guarantee: the orders of the papers for items of equal length. Equal scores come in random order. Items without a score
are spread evenly over all of training.
Cost: O(M log M).
Source: Data Efficacy for Language Model Training (arXiv 2506.21545) for `fold`; Demystifying Data Organization for
Enhanced LLM Training (arXiv 2605.30334) for `zigzag`.
Known weakness: the schedule stands still during an item that is long compared with training. The mix moves from window
to window in steps. With n folds a window holds ranks of n times its own width.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order.sections import FEWEST_SEQUENCES

Floats = NDArray[np.float64]
Pieces = NDArray[np.float64]
"""float64 (P, 2): the ranks at the beginning and the end of each of P equal parts of training: 0 and 1, or 1 and 0."""

ATOM = 1e-12
"""Smaller stretches of progress are rounding errors."""

SHORT = 2.0**-20
"""Length of an item without tokens, in mean items, so that such items have places of their own."""

WINDOW = 1 / 32
"""Share of training of a window."""

LARGEST_LEAST = 1 / 8
"""A window has at least FEWEST_SEQUENCES, or this share of a shorter training."""

UP, DOWN = (0.0, 1.0), (1.0, 0.0)
SHAPES: dict[str, Pieces] = {
    "rise": np.array([UP]),
    "fall": np.array([DOWN]),
    "fold": np.array([UP] * 5),
    "zigzag": np.array([UP, DOWN, UP, DOWN, UP]),
}
"""The schedules by name, as the papers have them."""


def asked_rank(pieces: Pieces, progress: Floats) -> Floats:
    """The asked rank at each progress, both float64 (n,)."""
    piece = np.clip(np.floor(progress * len(pieces)).astype(np.int64), 0, len(pieces) - 1)
    low, high = pieces[piece].T
    return low + (high - low) * np.clip(progress * len(pieces) - piece, 0.0, 1.0)


def due_times(
    scores: Floats, sizes: NDArray[np.generic], pieces: Pieces, *, begin: float = 0.0, seed: int = 0
) -> Floats:
    """The progress at which each item is due, float64 (M,) in [begin, 1].

    scores: float64 (M,), NaN for none. sizes: (M,), the items' tokens. begin: progress of what is read before; the rest
    has the ranks that the schedule still asks for.
    """
    shuffled = np.random.default_rng(seed).permutation(len(scores))
    known = ~np.isnan(scores[shuffled])
    ranked, others = shuffled[known], shuffled[~known]
    ranked = ranked[np.argsort(scores[ranked], kind="stable")]
    due = np.empty(len(sizes))
    due[others] = begin + (1.0 - begin) * _middles(sizes[others])
    # Ranks on each side of the present one are passed by the present piece and those that follow, or by these alone.
    first = int(np.searchsorted(np.arange(1, len(pieces) + 1) / len(pieces), begin + ATOM))
    if first == len(pieces):  # Nothing is left to read.
        first, begin = 0, 0.0
    stands = float(asked_rank(pieces, np.array([max(begin, first / len(pieces))]))[0])
    middles, edge, bound = _middles(sizes[ranked]), 0.0, 0
    spans = [(0.0, stands), (stands, 1.0)]
    following, falls = [*range(first + 1, len(pieces))], pieces[:, 0] == 1
    passing = [[first] * side + following for side in (bool(falls[first]), not falls[first])]
    measures = np.array([(high - low) * len(of) for (low, high), of in zip(spans, passing, strict=True)])
    for (low, high), of, share in zip(spans, passing, measures / measures.sum(), strict=True):
        if share <= ATOM:
            continue
        last = int(np.searchsorted(middles, edge + share - ATOM)) if high < 1.0 else len(middles)
        items, within = ranked[bound:last], (middles[bound:last] - edge) / share
        # The first piece begins with the first item that it passes.
        way = -1 if falls[of[0]] else 1
        parts = np.diff(np.arange(len(pieces) + 1) / len(pieces))[of]
        piece = np.array(of)[_turns(parts, sizes[items][::way])[::way]]
        rank = low + within * (high - low)
        due[items] = (piece + np.where(falls[piece], 1.0 - rank, rank)) / len(pieces)
        edge, bound = edge + share, last
    return due


def window_share(batch: float, sequence: float, pieces: Pieces) -> float:
    """The share of training of a window: a 32nd, within 4 to 64 batches, at most an eighth of training, and at most a
    quarter of the ranks. batch, sequence: the share of a batch and of a sequence. pieces: the schedule."""
    least = min(FEWEST_SEQUENCES * sequence, LARGEST_LEAST)
    return max(least, min(max(WINDOW, min(4 * batch, 1 / 8)), 64 * batch, 1 / (4 * len(pieces))))


def windows_of(
    scores: Floats,
    sizes: NDArray[Any],
    pieces: Pieces,
    window: float,
    *,
    begin: float = 0.0,
    seed: int = 0,
) -> NDArray[np.int64]:
    """The window of each item, int64 (M,), in 0..W-1, in the order of training.

    A window has about the share `window` of all tokens. None crosses a jump of the schedule, unless another jump is
    less than half a window away. Arguments: as in `due_times`.
    """
    order = np.argsort(due_times(scores, sizes, pieces, begin=begin, seed=seed), kind="stable")
    # `window` is a share of all of training, what is read before included.
    share = min(1.0, window / (1.0 - begin)) if begin < 1.0 else 1.0
    jumps = [0.0]
    for piece in range(1, len(pieces)) if begin < 1.0 else ():
        at = (piece / len(pieces) - begin) / (1.0 - begin)
        if pieces[piece, 0] != pieces[piece - 1, 1] and jumps[-1] + 0.5 * share <= at <= 1.0 - 0.5 * share:
            jumps.append(at)
    edges = []
    for low, high in pairwise([*jumps, 1.0]):
        windows = max(1, round((high - low) / share))
        edges.append(low + (high - low) * np.arange(1, windows + 1) / windows)
    number = np.empty(len(sizes), np.int64)
    number[order] = np.searchsorted(np.concatenate(edges)[:-1], _middles(sizes[order]), side="right")
    # An empty window is none.
    return np.unique(number, return_inverse=True)[1]


def token_ranks(scores: Floats, tokens: NDArray[np.generic]) -> Floats:
    """The rank of each item by token, float64 (M,) in (0, 1), NaN without a score; equal scores have one rank."""
    ranks, known = np.full(len(scores), np.nan), ~np.isnan(scores)
    values, number = np.unique(scores[known], return_inverse=True)
    sizes = np.bincount(number, np.maximum(tokens[known].astype(np.float64), ATOM), len(values))
    if len(values):
        ends = np.cumsum(sizes)
        ranks[known] = ((ends - 0.5 * sizes) / ends[-1])[number]
    return ranks


def _turns(share: Floats, sizes: NDArray[np.generic]) -> NDArray[np.int64]:
    """A piece for each item, int64 (n,), in turns that give each piece its share of the tokens: 0, 1, 2, 0, 1, 2 for
    equal sizes."""
    if len(share) == 1 or (sizes == sizes[:1]).all():
        return np.arange(len(sizes)) % len(share)
    # Each piece begins with half a mean item, as in Webster's method; the least of the sums over the shares is next.
    weights = _weights(sizes)
    heap = [
        (0.5 * weights.mean() / part, piece, part)
        for piece, part in enumerate((share / share.sum()).tolist())
    ]
    heapq.heapify(heap)
    pieces = np.empty(len(sizes), np.int64)
    for item, weight in enumerate(weights):
        reached, pieces[item], part = heap[0]
        heapq.heapreplace(heap, (reached + weight / part, heap[0][1], part))
    return pieces


def _weights(sizes: NDArray[np.generic]) -> Floats:
    """Lengths, float64 (n,): items without tokens are very short; if no item has tokens, all are equally long."""
    weights = sizes.astype(np.float64)
    return np.maximum(weights, SHORT * weights.mean()) if weights.sum() > 0 else np.ones(len(sizes))


def _middles(sizes: NDArray[np.generic]) -> Floats:
    """The middle of each item in their sequence, float64 (n,) in (0, 1), rising."""
    weights = _weights(sizes)
    ends = np.cumsum(weights)
    return (ends - 0.5 * weights) / (ends[-1] if len(ends) else 1.0)
