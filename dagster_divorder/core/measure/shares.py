"""Deviation of trait shares in windows of training from the corpus's shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive
from dagster_divorder.core.measure.stream import codes_in_order, token_shares, tokens_in_order
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.stretch_windows import AskedMix


@dataclass(frozen=True)
class ShareDeviation:
    """Deviation of a trait's shares in aligned windows from the corpus's p.

    For window w with shares p_j(w), both in [0, 1]:
        worst_w = max_j |p_j(w) - p_j|        tv_w = 1/2 sum_j |p_j(w) - p_j|
        l2_w = sqrt(sum_j (p_j(w) - p_j)^2)
    windows: number of full windows; 0 for a corpus without tokens, whose values are all 0.
    worst_window: the first window with the largest worst_w; -1 without windows, or if averaged orders disagree.
    partial: the corpus is shorter than one window, so the window is the whole corpus and deviates by 0.
    """

    windows: int
    mean_worst: float
    max_worst: float
    mean_tv: float
    max_tv: float
    mean_l2: float
    max_l2: float
    worst_window: int
    partial: bool


def summarize_windows(
    worst: NDArray[np.float64], tv: NDArray[np.float64], l2: NDArray[np.float64], *, partial: bool
) -> ShareDeviation:
    """Summary of the arrays of `aligned_windows`."""
    if not len(worst):
        return ShareDeviation(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1, partial=False)
    return ShareDeviation(
        windows=len(worst),
        mean_worst=float(worst.mean()),
        max_worst=float(worst.max()),
        mean_tv=float(tv.mean()),
        max_tv=float(tv.max()),
        mean_l2=float(l2.mean()),
        max_l2=float(l2.max()),
        worst_window=int(worst.argmax()),
        partial=partial,
    )


def aligned_windows(
    tokens: NDArray[np.int64],
    codes: NDArray[np.int32],
    n_values: int,
    window: int,
    mix: AskedMix | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(worst, tv, l2) of each full window [i W, (i+1) W), float64 (windows,). A partial last window is left out, since
    few tokens always deviate. mix: the mix of each stretch (`core.measure.stretches`), which replaces the whole's p."""
    windows = int(tokens.sum()) // window
    if mix is not None:
        from dagster_divorder.core.kernels.stretch_windows import deviations

        starts = np.arange(windows) * window
        along: tuple[NDArray[np.float64], ...] = deviations(tokens, codes, mix, starts, starts + window)
        return along[0], along[1], along[2]
    from dagster_divorder.core.kernels.windows import window_deviations

    share = token_shares(tokens, codes, n_values)
    heaviest = np.argsort(-share, kind="stable")
    return window_deviations(tokens, codes, share, heaviest, window, windows)


def cluster_mix(
    order: ArrayLike, tokens: ArrayLike, labels: ArrayLike, n_values: int, columns: int
) -> NDArray[np.float32]:
    """Token share of each cluster in `columns` equal slices of the ordered corpus, float32 (columns, K).

    Slice c is [c T / columns, (c + 1) T / columns) of the T tokens. Its edges may split a token; in units of 1 /
    columns tokens they are whole, so shares are exact. A row sums to 1; without tokens it is 0.
    """
    stream = tokens_in_order(order, tokens)
    values = codes_in_order(order, labels, n_values, len(np.asarray(tokens)))
    positive("columns", columns)
    total = int(stream.sum())
    if total == 0:
        return np.zeros((columns, n_values), np.float32)
    if total * columns > np.iinfo(np.int64).max:
        raise InputError(f"{total} tokens in {columns} columns overflow 64 bits; ask for fewer columns")
    from dagster_divorder.core.kernels.windows import window_counts

    counts = window_counts(stream * columns, values, n_values, total)
    return (counts / total).astype(np.float32)
