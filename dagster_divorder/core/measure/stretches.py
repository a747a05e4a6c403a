"""Windows compared with the mix of the stretch in which they lie.

A stretch is a part of training with an asked mix of its own: a phase, a window of a score, a beginning that stays
(`core.order.sections`). Its mix is the one that its own documents have. A window across a border is compared with both
mixes, by its tokens in each.

Letters: N documents in order, J trait values, T stretches, P pieces of the order, each in one stretch.

Cost: O(N J) for windows at every position; one mix takes O(N log J).
Known weakness: the worst deviation is taken over the ends of documents; between them it is convex except where the mix
changes inside one document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.stretch_windows import AskedMix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def asked_mix(tokens: Ints, codes: NDArray[np.int32], n_values: int, stretch: Ints) -> AskedMix:
    """The mix along documents in order: (N,) each, the tokens, the trait value in [0, J), and the stretch of each."""
    from dagster_divorder.core.kernels.stretch_windows import AskedMix

    stretches = int(stretch.max(initial=0)) + 1
    totals = np.bincount(stretch * n_values + codes, tokens, stretches * n_values).reshape(stretches, -1)
    shares = totals / np.maximum(totals.sum(axis=1, keepdims=True), 1.0)
    begins = np.flatnonzero(np.diff(stretch, prepend=-1))
    at = (np.cumsum(tokens) - tokens)[begins].astype(np.float64)
    # Pieces without tokens end where they begin.
    share = shares[stretch[begins]]
    widths = np.diff(at, append=float(tokens.sum()))[:, np.newaxis]
    return AskedMix(at, np.cumsum(share * widths, axis=0) - share * widths, share)


def constant_mix(share: Floats) -> AskedMix:
    """The mix that has the shares float64 (J,) everywhere."""
    from dagster_divorder.core.kernels.stretch_windows import AskedMix

    return AskedMix(np.zeros(1), np.zeros((1, len(share))), share[np.newaxis])


def asked_between(mix: AskedMix, edges: Floats) -> Floats:
    """Asked shares between neighbouring edges, float64 (E - 1, J). edges: float64 (E,), in tokens."""
    piece = np.maximum(np.searchsorted(mix.at, edges, side="right") - 1, 0)
    reached = mix.reached[piece] + (edges - mix.at[piece])[:, np.newaxis] * mix.share[piece]
    return np.diff(reached, axis=0) / np.diff(edges)[:, np.newaxis]


def slide_along(
    tokens: Ints, codes: NDArray[np.int32], mix: AskedMix, window: int
) -> tuple[float, float, float, float, int]:
    """(worst, mean, worst_tv, mean_tv, worst_start) over all positions of the window;
    `kernels.sliding_windows.slide_documents` for a mix that changes. There must be at least `window` tokens."""
    from dagster_divorder.core.kernels.stretch_windows import deviations

    bounds = np.concatenate([[0], np.cumsum(tokens)])
    last = int(bounds[-1]) - window
    # A stable sort merges two rising runs in linear time.
    every = np.sort(np.clip(np.concatenate([bounds, bounds - window]), 0, last), kind="stable")
    starts = every[np.diff(every, prepend=-1) > 0]
    worst, tv, _ = deviations(tokens, codes, mix, starts, starts + window)
    at = int(worst.argmax())
    mean, mean_tv = (
        float(np.trapezoid(values, starts)) / last if last else float(values[0]) for values in (worst, tv)
    )
    return float(worst[at]), mean, float(tv.max()), mean_tv, int(starts[at])


def shuffled_inside(stretch: Ints, random: np.random.Generator) -> Ints:
    """A shuffle of items inside their stretches, int64 (N,). stretch: int (N,), by place; stretches keep their
    order."""
    shuffled = random.permutation(len(stretch))
    return shuffled[np.argsort(stretch[shuffled], kind="stable")]


def off_schedule(rank: Floats, tokens: Ints, asked: Floats, edges: Ints) -> float:
    """Mean distance between the mean rank of a batch's tokens and the asked rank there, weighted by tokens.

    rank: float64 (N,), of the runs in order, NaN for none, which are ignored. tokens: int64 (N,). asked: float64 (B,),
    for each batch. edges: int64 (B + 1,), the runs at which batches begin and end.
    """
    known = np.where(np.isnan(rank), 0, tokens)
    sums, weights = (
        np.diff(np.append(0.0, np.cumsum(values))[edges]) for values in (known * np.nan_to_num(rank), known)
    )
    means = np.divide(sums, weights, out=asked.copy(), where=weights > 0)
    return float(np.abs(means - asked) @ weights / max(weights.sum(), 1.0))
