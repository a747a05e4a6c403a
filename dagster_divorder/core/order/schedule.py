"""Schedules: the rank of a score at each point of progress, and when each item is due.

Letters: M items, P pieces.

Progress and rank run from 0 to 1, by token: a share r of the tokens has scores below rank r. A schedule is a list of
pieces, straight lines over progress. Pieces may cover the same ranks at different times (folds). A flat piece is a
stretch whose ranks come in random order.

A monotone coupling of ranks and schedule values gives every item a place, whatever the schedule: the item at rank r is
due when the schedule stands at its r-quantile. For the schedules of the papers that quantile is r itself. For others it
is the nearest in mean square (optimal transport between two distributions on a line). Where several pieces pass a rank,
its items take turns.

Guarantee: `rise`, `fold`, `zigzag`, `stair`, `saw` and `segment` give the orders of their papers for items of equal
length. Equal scores come in random order. Items without a score are spread evenly over all of training.
Cost: O(M log M).
Source: Data Efficacy for Language Model Training (arXiv 2506.21545) for `fold`; Demystifying Data Organization for
Enhanced LLM Training (arXiv 2605.30334) for `zigzag`, `segment`, `stair` and `saw`.
Known weakness: the schedule stands still during an item that is long compared with training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pieces = NDArray[np.float64]
"""float64 (P, 4), one row a piece: progress at its beginning and end, rank at its beginning and end."""

ATOM = 1e-12
"""Smaller stretches of progress are rounding errors."""

SHORT = 2.0**-20
"""Length of an item without tokens, in mean items, so that such items have places of their own."""


def folded(folds: int, *, turning: bool = False) -> Pieces:
    """All ranks `folds` times, every `folds`-th item each time. turning: every second time from the highest down."""
    at = np.arange(folds + 1) / folds
    down = (np.arange(folds) % 2 == 1) & turning
    return np.column_stack([at[:-1], at[1:], down, ~down]).astype(np.float64)


def sections(sections: int, ratio: float, folds: int, *, turning: bool) -> Pieces:
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


def segments(first: float, last: float, ends: str) -> Pieces:
    """A share `first` of the lowest or highest ranks, the rest, then a share `last`; each in random order, at its mean
    rank. ends: "low-high" and the like. If both ends are on one side, they share it at random."""
    begins, closes = ends.split("-")
    sides = [(begins, first), (closes, last)]
    low, high = (sum(share for end, share in sides if end == side) for side in ("low", "high"))
    rank = {"low": low / 2, "high": 1.0 - high / 2}
    rest = (1.0 + low - high) / 2
    pieces = [(0.0, first, rank[begins]), (first, 1.0 - last, rest), (1.0 - last, 1.0, rank[closes])]
    return np.array([(begin, end, at, at) for begin, end, at in pieces if end - begin > ATOM])


def through(points: Sequence[tuple[float, float]]) -> Pieces:
    """Straight lines through points (progress, rank), whose progress rises from 0 to 1."""
    at = np.asarray(points, np.float64)
    return np.column_stack([at[:-1, 0], at[1:, 0], at[:-1, 1], at[1:, 1]])


def reversed_ranks(pieces: Pieces) -> Pieces:
    """The pieces for the opposite score."""
    return np.column_stack([pieces[:, :2], 1.0 - pieces[:, 2:]])


def asked_rank(pieces: Pieces, progress: Floats) -> Floats:
    """The asked rank at each progress, both float64 (n,)."""
    piece = np.clip(np.searchsorted(pieces[:, 0], progress, side="right") - 1, 0, len(pieces) - 1)
    begin, end, low, high = pieces[piece].T
    return low + (high - low) * np.clip((progress - begin) / np.maximum(end - begin, ATOM), 0.0, 1.0)


def due_times(
    scores: Floats,
    sizes: NDArray[np.generic],
    pieces: Pieces,
    *,
    strength: float = 1.0,
    begin: float = 0.0,
    repeats: NDArray[np.integer] | None = None,
    seed: int = 0,
) -> Floats:
    """The progress at which each item is due, float64 (M,) in [begin, 1].

    scores: float64 (M,), NaN for none. sizes: (M,), the items' tokens. strength: the share of the items that follow the
    schedule; the others are spread evenly. begin: progress of the items already consumed. repeats: int (M,), how often
    each item comes; by default once. The result then lists the times item by item. Copies that are due in the same
    stretch go to its pieces in turn; copies off the schedule are far apart.
    """
    random = np.random.default_rng(seed)
    shuffled = random.permutation(len(scores))
    scored = shuffled[~np.isnan(scores[shuffled])]
    ranked = scored[np.argsort(scores[scored], kind="stable")]
    if repeats is not None:
        first = np.cumsum(repeats) - repeats
        ranked, _ = _repeated(ranked, first, repeats)
        shuffled, number = _repeated(shuffled, first, repeats)
        shuffled = shuffled[np.argsort(number, kind="stable")]
        sizes = np.repeat(sizes, repeats)
    # Every rank gives the same share of its items.
    reached = np.floor(np.arange(len(ranked) + 1) * strength + random.random())
    follows = np.diff(reached) > 0 if strength < 1.0 else np.ones(len(ranked), bool)
    ranked = ranked[follows]
    spread = np.ones(len(sizes), bool)
    spread[ranked] = False
    others = shuffled[spread[shuffled]]
    due = np.empty(len(sizes))
    due[others] = begin + (1.0 - begin) * _middles(sizes[others])
    due[ranked] = _coupled(_clipped(pieces, begin), sizes[ranked], random)
    return due


def _repeated(
    items: NDArray[np.int64], first: NDArray[np.int64], repeats: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(the indices first[i], first[i] + 1, ... of each item's repeats; the repeats' numbers 0, 1, ...)."""
    counts = repeats[items]
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first[items], counts) + number, number


def token_ranks(
    scores: Floats, tokens: NDArray[np.generic], kept: Sequence[NDArray[np.integer]] = ()
) -> Floats:
    """The rank of each item by token, float64 (M,) in (0, 1), NaN without a score; equal scores have one rank. kept:
    int (M,) each; items are ranked among those that are alike in all of them."""
    known = np.flatnonzero(~np.isnan(scores))
    ranks = np.full(len(scores), np.nan)
    if not len(known):
        return ranks
    order = known[np.lexsort([scores[known], *(codes[known] for codes in kept)])]
    changes = np.zeros(len(order), bool)
    for codes in kept:
        changes[1:] |= np.diff(codes[order]) != 0
    starts = np.flatnonzero(np.append(True, changes[1:]))
    for first, last in zip(starts, np.r_[starts[1:], len(order)], strict=True):
        items = order[first:last]
        values, number = np.unique(scores[items], return_inverse=True)
        weights = np.maximum(tokens[items].astype(np.float64), ATOM)
        ends = np.cumsum(np.bincount(number, weights, len(values)))
        sizes = np.diff(ends, prepend=0.0)
        ranks[items] = ((ends - 0.5 * sizes) / ends[-1])[number]
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
    from dagster_divorder.core.kernels.turns import take_turns

    pieces: NDArray[np.int64] = take_turns(np.ascontiguousarray(_weights(sizes)), share)
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
