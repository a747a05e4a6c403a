"""The seam between epochs: windows across the end of one and the beginning of the next.

Letters: N documents, J trait values, E epochs, T tokens an epoch, W tokens a window.

Most trainers repeat one order, so the epochs form a circle: the first follows the last, and a single epoch follows
itself. The windows across a seam are the W - 1 positions with tokens of both sides, plus the last and the first window.
Cost: O(N + n log J) for the n documents within a window of a seam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.stream import token_shares
from dagster_divorder.core.measure.stretches import asked_between, slide_along

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.stretch_windows import AskedMix

ValuedTokens = tuple[NDArray[np.int64], NDArray[np.int32]]
"""Tokens (N,) and trait values (N,) of documents in order."""


@dataclass(frozen=True)
class Seam:
    """One trait across the seam, over every position of the window.

    worst, mean, worst_tv, mean_tv: as in `WindowDeviation`; over several seams the largest and the mean.
    head_tail: total variation between the first window of an epoch and the last window of the epoch before, minus the
        difference of their asked mixes; mean over the seams.
    All are 0 if the data is no longer than a window.
    """

    window_tokens: int
    worst: float
    mean: float
    worst_tv: float
    mean_tv: float
    head_tail: float


def seams(epochs: Sequence[ValuedTokens], n_values: int, window: int, mix: AskedMix | None = None) -> Seam:
    """The seams of epochs of the same documents: each epoch is followed by the next, and the last by the first. mix: of
    each stretch, over at least two epochs; it replaces the whole's p."""
    total = int(epochs[0][0].sum())
    if total <= window:
        return Seam(window, 0.0, 0.0, 0.0, 0.0, 0.0)
    share = token_shares(*epochs[0], n_values)
    figures = []
    for before, after in zip(epochs, [*epochs[1:], epochs[0]], strict=True):
        tail, head = _cut(before, total - window, total), _cut(after, 0, window)
        tokens, codes = np.concatenate([tail[0], head[0]]), np.concatenate([tail[1], head[1]])
        step = _counts(head, n_values) / window - _counts(tail, n_values) / window
        if mix is None:
            from dagster_divorder.core.kernels.sliding_windows import slide_documents

            slid = slide_documents(tokens, codes, share, window)
        else:
            slid = slide_along(tokens, codes, mix._replace(at=mix.at - (total - window)), window)
            edges = np.array([total - window, total, total + window], np.float64)
            step -= np.diff(asked_between(mix, edges), axis=0)[0]
        figures.append((*slid[:4], np.abs(step).sum() / 2))
    return over_seams(window, figures)


def over_seams(window: int, figures: Sequence[tuple[float, ...]]) -> Seam:
    """A seam from the worst, mean, worst_tv, mean_tv and head_tail of several."""
    worst, mean, worst_tv, mean_tv, head_tail = np.array(figures, np.float64).T
    return Seam(
        window_tokens=window,
        worst=float(worst.max()),
        mean=float(mean.mean()),
        worst_tv=float(worst_tv.max()),
        mean_tv=float(mean_tv.mean()),
        head_tail=float(head_tail.mean()),
    )


def _cut(stream: ValuedTokens, start: int, stop: int) -> ValuedTokens:
    """The tokens [start, stop) as parts of documents."""
    tokens, codes = stream
    ends = np.cumsum(tokens)
    first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left")
    inside = np.minimum(ends[first : last + 1], stop) - np.maximum((ends - tokens)[first : last + 1], start)
    return inside, codes[first : last + 1]


def _counts(stream: ValuedTokens, n_values: int) -> NDArray[np.int64]:
    from dagster_divorder.core.kernels.windows import window_counts

    tokens, codes = stream
    return window_counts(tokens, codes, n_values, int(tokens.sum()))[0]
