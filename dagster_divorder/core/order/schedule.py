"""Schedules: the rank of a score at each point of progress, when each item is due, and windows of items due together.

Letters: M items, P pieces, W windows.

Progress and rank run from 0 to 1, by token: a share r of the tokens has scores below rank r. A schedule is a list of
pieces, straight lines over progress. Pieces may cover the same ranks at different times (folds). A flat piece is a
stretch whose ranks come in random order.

A monotone coupling of ranks and schedule values gives every item a place, whatever the schedule: the item at rank r is
due when the schedule stands at its r-quantile. For the schedules of the papers that quantile is r itself. For others it
is the nearest in mean square (optimal transport between two distributions on a line). Where several pieces pass a rank,
its items take turns.

Items sorted by due time are the orders of the papers. Cut into windows, each becomes a section (`core.order.sections`),
and a strategy orders the items of a window: `random` is the papers' window shuffle (jitter), `balanced` keeps the
window's own mix throughout. The schedule decides that mix: a source that correlates with the score moves with the
score.

Guarantee: `rise`, `fold`, `zigzag`, `stair`, `saw` and `segment` give the orders of their papers for items of equal
length. Equal scores come in random order. Items without a score are spread evenly over all of training.
Cost: O(M log M).
Source: Data Efficacy for Language Model Training (arXiv 2506.21545) for `fold`; Demystifying Data Organization for
Enhanced LLM Training (arXiv 2605.30334) for `zigzag`, `segment`, `stair` and `saw`.
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
"""float64 (P, 4), one row a piece: progress at its beginning and end, rank at its beginning and end."""

ATOM = 1e-12
"""Smaller stretches of progress are rounding errors."""

SHORT = 2.0**-20
"""Length of an item without tokens, in mean items, so that such items have places of their own."""


WINDOW = 1 / 32
"""Share of training of a window."""

LARGEST_LEAST = 1 / 8
"""A window has at least FEWEST_SEQUENCES, or this share of a shorter training."""


def folded(folds: int, *, turning: bool = False) -> Pieces:
    """All ranks `folds` times, every `folds`-th item each time. turning: every second time from the highest down."""
    at = np.arange(folds + 1) / folds
    down = (np.arange(folds) % 2 == 1) & turning
    return np.column_stack([at[:-1], at[1:], down, ~down]).astype(np.float64)


def bordered(sections: int, ratio: float, folds: int, *, turning: bool) -> Pieces:
    """Rising ranks, except around the borders of equal sections: there, `ratio` on each side is folded."""
    pieces: list[Pieces] = []
    at = 0.0
    for border in np.arange(1, sections) / sections:
        first, last = max(at, border - ratio), min(1.0, border + ratio)
        if first > at:
            pieces.append(np.array([[at, first, at, first]]))
        if last > first:
            pieces.append(first + (last - first) * folded(folds, turning=turning))
        at = last
    if at < 1.0:
        pieces.append(np.array([[at, 1.0, at, 1.0]]))
    return np.concatenate(pieces)


SHAPES: dict[str, Pieces] = {
    "rise": folded(1),
    "fall": np.array([[0.0, 1.0, 1.0, 0.0]]),
    "fold": folded(5),
    "zigzag": folded(5, turning=True),
    "stair": bordered(2, 0.225, 3, turning=False),
    "saw": bordered(3, 0.075, 2, turning=True),
    # A tenth of the lowest ranks, the rest, a tenth of the highest; each in random order, at its mean rank.
    "segment": np.array([[0.0, 0.1, 0.05, 0.05], [0.1, 0.9, 0.5, 0.5], [0.9, 1.0, 0.95, 0.95]]),
}
"""The schedules by name, as the papers have them."""


def asked_rank(pieces: Pieces, progress: Floats) -> Floats:
    """The asked rank at each progress, both float64 (n,)."""
    piece = np.clip(np.searchsorted(pieces[:, 0], progress, side="right") - 1, 0, len(pieces) - 1)
    begin, end, low, high = pieces[piece].T
    return low + (high - low) * np.clip((progress - begin) / np.maximum(end - begin, ATOM), 0.0, 1.0)


def due_times(
    scores: Floats, sizes: NDArray[np.generic], pieces: Pieces, *, begin: float = 0.0, seed: int = 0
) -> Floats:
    """The progress at which each item is due, float64 (M,) in [begin, 1].

    scores: float64 (M,), NaN for none. sizes: (M,), the items' tokens. begin: progress of what is read before.
    """
    random = np.random.default_rng(seed)
    shuffled = random.permutation(len(scores))
    known = ~np.isnan(scores[shuffled])
    ranked, others = shuffled[known], shuffled[~known]
    ranked = ranked[np.argsort(scores[ranked], kind="stable")]
    due = np.empty(len(sizes))
    due[others] = begin + (1.0 - begin) * _middles(sizes[others])
    due[ranked] = _coupled(_clipped(pieces, begin), sizes[ranked], random)
    return due


def window_share(batch: float, sequence: float, pieces: Pieces) -> float:
    """The share of training of a window: a 32nd, within 4 to 64 batches, at most an eighth of training, and at most a
    quarter of the ranks. batch, sequence: the share of a batch and of a sequence. pieces: the schedule."""
    least = min(FEWEST_SEQUENCES * sequence, LARGEST_LEAST)
    steepest = float(np.max(np.abs(pieces[:, 3] - pieces[:, 2]) / (pieces[:, 1] - pieces[:, 0])))
    return max(least, min(max(WINDOW, min(4 * batch, 1 / 8)), 64 * batch, 1 / (4 * max(1.0, steepest))))


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
    less than half a window away; a flat stretch is one window. Arguments: as in `due_times`.
    """
    order = np.argsort(due_times(scores, sizes, pieces, begin=begin, seed=seed), kind="stable")
    # `window` is a share of all of training, what is read before included.
    share = min(1.0, window / (1.0 - begin)) if begin < 1.0 else 1.0
    stretches = np.concatenate([[0.0], jumps(pieces, begin, 0.5 * share), [1.0]])
    edges = []
    for low, high in pairwise(stretches):
        ranks = asked_rank(pieces, begin + (1.0 - begin) * (low + (high - low) * np.array([0.25, 0.75])))
        number = 1 if np.ptp(ranks) <= ATOM else max(1, round((high - low) / share))
        edges.append(low + (high - low) * np.arange(1, number + 1) / number)
    middles = _middles(sizes[order])
    number = np.empty(len(sizes), np.int64)
    number[order] = np.searchsorted(np.concatenate(edges)[:-1], middles, side="right")
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


def _coupled(pieces: Pieces, sizes: NDArray[np.generic], random: np.random.Generator) -> Floats:
    """Times of items, float64 (n,), by rising rank."""
    middles, due = _middles(sizes), np.empty(len(sizes))
    stretches = _stretches(pieces)
    measures = np.array([times[:, 2].sum() for times, _ in stretches])
    edges = np.concatenate([[0.0], np.cumsum(measures / measures.sum())])
    bounds = np.searchsorted(middles, edges - ATOM)
    bounds[0], bounds[-1] = 0, len(middles)
    for (times, flat), first, last, low, high in zip(
        stretches, bounds[:-1], bounds[1:], edges[:-1], edges[1:], strict=True
    ):
        if first == last:
            continue
        share = times[:, 2] / times[:, 2].sum()
        if flat:
            items = first + random.permutation(last - first)
            at, ends = _middles(sizes[items]), np.cumsum(share)
            piece = np.searchsorted(ends[:-1], at, side="right")
            within = (at - (ends - share)[piece]) / share[piece]
        else:
            items = np.arange(first, last)
            # The first piece begins with the first item that it passes.
            way = 1 if times[0, 0] < times[0, 1] else -1
            piece = _turns(share, sizes[first:last][::way])[::way]
            within = (middles[first:last] - low) / (high - low)
        due[items] = times[piece, 0] + within * (times[piece, 1] - times[piece, 0])
    return due


def _stretches(pieces: Pieces) -> list[tuple[Floats, bool]]:
    """The stretches by rising rank: (the times of each piece, float64 (B, 3): progress at its low end, at its high end,
    and its measure; whether the pieces are flat)."""
    begin, end, first, last = pieces.T
    low, high, measure = np.minimum(first, last), np.maximum(first, last), end - begin
    flat = high - low <= ATOM
    knots = _distinct(np.concatenate([first, last]))
    stretches = []
    for knot, above in zip(knots, [*knots[1:], np.inf], strict=True):
        here = np.flatnonzero(flat & (np.abs(first - knot) <= ATOM) & (measure > ATOM))
        if len(here):
            stretches.append((np.column_stack([begin[here], end[here], measure[here]]), True))
        inner = np.flatnonzero(~flat & (low <= knot + ATOM) & (high >= above - ATOM))
        if len(inner):
            slope = (measure / np.where(flat, 1.0, last - first))[inner]
            at_low, at_high = (begin[inner] + slope * (rank - first[inner]) for rank in (knot, above))
            stretches.append((np.column_stack([at_low, at_high, np.abs(at_high - at_low)]), False))
    return stretches


def _distinct(values: Floats) -> Floats:
    values = np.sort(values)
    return values[np.diff(values, prepend=-np.inf) > ATOM]


def _turns(share: Floats, sizes: NDArray[np.generic]) -> NDArray[np.int64]:
    """A piece for each item, int64 (n,), in turns that give each piece its share of the tokens: 0, 1, 2, 0, 1, 2 for
    equal shares."""
    if len(share) == 1:
        return np.zeros(len(sizes), np.int64)
    if np.ptp(share) <= ATOM and (sizes == sizes[0]).all():
        return np.arange(len(sizes)) % len(share)
    # Each piece begins with half a mean item, as in Webster's method; the least of the sums over the shares is next.
    weights = _weights(sizes)
    heap = [(0.5 * weights.mean() / part, piece, part) for piece, part in enumerate(share.tolist())]
    heapq.heapify(heap)
    pieces = np.empty(len(sizes), np.int64)
    for item, weight in enumerate(weights):
        reached, pieces[item], part = heap[0]
        heapq.heapreplace(heap, (reached + weight / part, heap[0][1], part))
    return pieces


def _clipped(pieces: Pieces, begin: float) -> Pieces:
    """The pieces from progress `begin` on."""
    left = pieces[pieces[:, 1] > begin + ATOM].copy()
    if not len(left):
        return pieces
    left[0, 2] = asked_rank(left[:1], np.array([begin]))[0] if left[0, 0] < begin else left[0, 2]
    left[0, 0] = max(left[0, 0], begin)
    return left


def _weights(sizes: NDArray[np.generic]) -> Floats:
    """Lengths, float64 (n,): items without tokens are very short; if no item has tokens, all are equally long."""
    weights = sizes.astype(np.float64)
    return np.maximum(weights, SHORT * weights.mean()) if weights.sum() > 0 else np.ones(len(sizes))


def jumps(pieces: Pieces, begin: float, apart: float) -> Floats:
    """Where the schedule jumps, float64 (K,), as a share of the training left after progress `begin`, ends excluded.
    Jumps are at least `apart` from each other."""
    at = pieces[1:, 0][np.abs(pieces[1:, 2] - pieces[:-1, 3]) > ATOM]
    kept = [0.0]
    for place in (at[at > begin] - begin) / (1.0 - begin) if begin < 1.0 else ():
        if place >= kept[-1] + apart and place <= 1.0 - apart:
            kept.append(float(place))
    return np.array(kept[1:])


def _middles(sizes: NDArray[np.generic]) -> Floats:
    """The middle of each item in their sequence, float64 (n,) in (0, 1), rising."""
    weights = _weights(sizes)
    ends = np.cumsum(weights)
    return (ends - 0.5 * weights) / (ends[-1] if len(ends) else 1.0)
