"""A mix that moves, and windows held against it: `order.targets`, as the corpus can meet them.

Letters: N documents, J trait values, P points of progress, T tokens in all, W tokens a window.

A table of targets is scaled so that it places every token (`core.order.targets.fitted_shares`): that is what can be
had. A window is held against the integral of it over the window, so that a window in which the mix turns is held
against what is wanted of both sides.

Cost: O(N J) for windows at every position, where a mix that stays takes O(N log J).
Known weakness: between two breakpoints a window's deviation is no longer convex, by as much as the mix turns inside
one document; the worst at every position is that of the breakpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.order import Targets
from dagster_divorder.core.order.targets import fitted_shares

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.moving_windows import MovingMix

Floats = NDArray[np.float64]


def achievable_mix(targets: Targets, share: Floats, tokens: int, epochs: int = 1) -> MovingMix:
    """What can be had of the targets where the trait's values have these shares of all tokens, float64 (J,)."""
    return moving_mix(
        targets.progress, fitted_shares(targets, np.zeros(len(share), np.int32), share), tokens, epochs
    )


def moving_mix(progress: Floats, shares: Floats, tokens: int, epochs: int = 1) -> MovingMix:
    """The mix that has the shares float64 (P, J) at points of progress (P,) through T tokens, linear between them; the
    same in every epoch."""
    from dagster_divorder.core.kernels.moving_windows import MovingMix

    widths = np.diff(progress)[:, np.newaxis] * tokens
    steps = 0.5 * (shares[1:] + shares[:-1]) * widths
    ends = np.cumsum(steps, axis=0)
    epoch = np.arange(epochs)
    reached = (ends - steps) + epoch[:, np.newaxis, np.newaxis] * ends[-1]
    return MovingMix(
        at=(progress[:-1] * tokens + epoch[:, np.newaxis] * tokens).ravel(),
        reached=reached.reshape(-1, shares.shape[1]),
        share=np.tile(shares[:-1], (epochs, 1)),
        drift=np.tile(np.diff(shares, axis=0) / (widths if tokens else 1.0), (epochs, 1)),
    )


def wanted_between(mix: MovingMix, edges: Floats) -> Floats:
    """Shares that the mix wants between neighbouring edges, float64 (E - 1, J); edges: float64 (E,), in tokens."""
    segment = np.maximum(np.searchsorted(mix.at, edges, side="right") - 1, 0)
    x = (edges - mix.at[segment])[:, np.newaxis]
    reached = mix.reached[segment] + x * (mix.share[segment] + 0.5 * x * mix.drift[segment])
    return np.diff(reached, axis=0) / np.diff(edges)[:, np.newaxis]


def slide_along(
    tokens: NDArray[np.int64], codes: NDArray[np.int32], mix: MovingMix, window: int
) -> tuple[float, float, float, float, int]:
    """worst, mean, worst_tv, mean_tv, worst_start over all positions of the window, as
    `kernels.sliding_windows.slide_documents` gives them for a mix that stays. At least `window` tokens in all."""
    from dagster_divorder.core.kernels.moving_windows import moving_deviations

    bounds = np.concatenate([[0], np.cumsum(tokens)])
    last = int(bounds[-1]) - window
    # Two rising runs, which a stable sort merges.
    every = np.sort(np.clip(np.concatenate([bounds, bounds - window]), 0, last), kind="stable")
    starts = every[np.diff(every, prepend=-1) > 0]
    worst, tv, _ = moving_deviations(tokens, codes, mix, starts, starts + window)
    at = int(worst.argmax())
    mean, mean_tv = (
        float(np.trapezoid(values, starts)) / last if last else float(values[0]) for values in (worst, tv)
    )
    return float(worst[at]), mean, float(tv.max()), mean_tv, int(starts[at])
