"""Windows compared with a moving mix: `order.targets`, as far as the corpus can meet them.

Letters: N documents, J trait values, P points of progress, T tokens in all, W tokens a window.

The achievable targets are the requested ones, scaled so that they place every token
(`core.order.targets.fitted_shares`). A window is compared with their integral over the window.

Cost: O(N J) for windows at every position; a constant mix takes O(N log J).
Known weakness: the worst deviation is taken over breakpoints; between them it is convex except for the change of the
mix inside one document.
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
    """The achievable mix of a trait whose values have the shares `share` of all tokens, float64 (J,)."""
    return moving_mix(
        targets.progress, fitted_shares(targets, np.zeros(len(share), np.int32), share), tokens, epochs
    )


def moving_mix(progress: Floats, shares: Floats, tokens: int, epochs: int = 1) -> MovingMix:
    """The mix with shares float64 (P, J) at points of progress (P,) through T tokens, linear between the points, and
    the same in every epoch."""
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


def constant_mix(share: Floats) -> MovingMix:
    """The mix that has the shares float64 (J,) everywhere."""
    from dagster_divorder.core.kernels.moving_windows import MovingMix

    nothing = np.zeros((1, len(share)))
    return MovingMix(np.zeros(1), nothing, share[np.newaxis], nothing)


def wanted_between(mix: MovingMix, edges: Floats) -> Floats:
    """Mean shares of the mix between neighbouring edges, float64 (E - 1, J). edges: float64 (E,), in tokens."""
    segment = np.maximum(np.searchsorted(mix.at, edges, side="right") - 1, 0)
    x = (edges - mix.at[segment])[:, np.newaxis]
    reached = mix.reached[segment] + x * (mix.share[segment] + 0.5 * x * mix.drift[segment])
    return np.diff(reached, axis=0) / np.diff(edges)[:, np.newaxis]


def slide_along(
    tokens: NDArray[np.int64], codes: NDArray[np.int32], mix: MovingMix, window: int
) -> tuple[float, float, float, float, int]:
    """(worst, mean, worst_tv, mean_tv, worst_start) over all positions of the window;
    `kernels.sliding_windows.slide_documents` for a moving mix. There must be at least `window` tokens."""
    from dagster_divorder.core.kernels.moving_windows import moving_deviations

    bounds = np.concatenate([[0], np.cumsum(tokens)])
    last = int(bounds[-1]) - window
    # A stable sort merges two rising runs in linear time.
    every = np.sort(np.clip(np.concatenate([bounds, bounds - window]), 0, last), kind="stable")
    starts = every[np.diff(every, prepend=-1) > 0]
    worst, tv, _ = moving_deviations(tokens, codes, mix, starts, starts + window)
    at = int(worst.argmax())
    mean, mean_tv = (
        float(np.trapezoid(values, starts)) / last if last else float(values[0]) for values in (worst, tv)
    )
    return float(worst[at]), mean, float(tv.max()), mean_tv, int(starts[at])
