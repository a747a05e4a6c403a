"""The certificate: how far any window strays from the whole's own mix, over every position that a window can take.

Letters: M items in order, J trait values, G groups, W tokens a window, T tokens in all.

A window is W consecutive tokens and may start at any token. An item's tokens of each trait value are taken as spread
evenly over the item; for a document, whose tokens share one value of each trait, that is how they lie. Between two
breakpoints (an end of the window meets an item boundary) every share is linear in the window's position, so its largest
deviation is convex there: the worst is exact, and found at a breakpoint.

Guarantee: whole items are counted exactly, in 64 bits; shares are float64. Epochs are windows too: an order that
names items again, epoch after epoch, is one stream, and windows across its seams count like any other.
Cost: O(nnz log J) time for each window size, two breakpoints an item; O(M + J) memory beside the counts.
Source: the objective is the second seed's, max_j max_[a,b) |p_j(a,b) - p_j|, here for windows of one size.
Known weakness: means are trapezoid integrals over the breakpoints, and so bounds from above, since the deviation is
convex between them: 1 to 2 % too high in windows of a sequence of the mixture corpus, right in batches. Cutting items
makes more breakpoints and brings the bound nearer, so compare the means of orders whose items are cut alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive
from dagster_divorder.core.metrics.moving import slide_along
from dagster_divorder.core.metrics.stream import indices_in, token_shares
from dagster_divorder.core.order.arguments import group_numbers, item_rows
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

    from dagster_divorder.core.kernels.moving_windows import Mix


@dataclass(frozen=True)
class WindowDeviation:
    """How far one group's shares in a window stray from the whole's p, over every position of the window.

    For the window at token a, with shares p_j(a), both in [0, 1]:
        worst(a) = max_j |p_j(a) - p_j|        tv(a) = 1/2 sum_j |p_j(a) - p_j|
    worst, worst_tv: their maxima. mean, mean_tv: their means over a, as trapezoid integrals over the breakpoints.
    worst_start: the first token a at which worst(a) is largest; -1 without tokens, or if averaged orders disagree.
    positions: starts a window can have, T - W + 1; 0 without tokens, and then all values are 0.
    partial: the whole is shorter than one window, which is then the whole (and deviates by 0).
    ideal, ideal_tv: what shuffling single tokens would leave on average; see `shuffled_tokens`.
    """

    window_tokens: int
    positions: int
    worst: float
    mean: float
    worst_tv: float
    mean_tv: float
    worst_start: int
    partial: bool
    ideal: float
    ideal_tv: float


@dataclass(frozen=True, eq=False, kw_only=True)
class _Rows:
    """Items by number, as CSR arrays, and the group of each of J columns; see `kernels.sliding_windows.slide`."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[Any]
    groups: NDArray[np.int32]


def window_deviation(
    order: ArrayLike, counts: csr_matrix | csr_array, groups: ArrayLike, window_tokens: int
) -> tuple[WindowDeviation, ...]:
    """Worst and mean deviation of each group, (G,), over all positions of a window of `window_tokens` tokens.

    order: int (M,), items in the order in which they are consumed; one may come again, or not at all.
    counts: SciPy CSR (items, J) of whole numbers >= 0. groups: int (J,), the group 0..G-1 of each trait value. Both as
        `core.order.order` takes them.
    An item is as long, in tokens, as its row's sum in group 0; one without tokens is in no window and counts nowhere.
    p_j is the share of j in its group over the order. A group in another unit (documents, say) is looked at through
    windows of tokens too: p_j(a) is then a share of what the window holds of that group. This costs O(M J).

    Raises:
        InputError: an argument cannot be used.
    """
    from dagster_divorder.core.kernels.sliding_windows import item_sums

    rows = _checked(counts, groups)
    stream = indices_in(order, len(rows.indptr) - 1)
    window = positive("window_tokens", window_tokens)
    n_groups = int(rows.groups.max(initial=-1)) + 1
    if n_groups == 0:
        return ()
    lengths, own_unit = item_sums(rows.indptr, rows.indices, rows.data, rows.groups, n_groups)
    return _deviations(stream[lengths[stream] > 0], lengths, rows, own_unit, window)


def windows_in_stream(
    tokens: NDArray[np.int64],
    codes: NDArray[np.int32],
    n_values: int,
    window_tokens: int,
    mix: Mix | None = None,
) -> WindowDeviation:
    """The same for documents already in order: tokens (N,), and their values of one trait, (N,) in [0, J). O(N log J)
    time, O(J) memory.

    mix: what windows are held against where it moves (`core.metrics.moving`), in place of the whole's p; `ideal` stays
    that of p. O(N J) time, O(N) memory.
    """
    from dagster_divorder.core.kernels.sliding_windows import slide_documents

    window = positive("window_tokens", window_tokens)
    total = int(tokens.sum())
    share = token_shares(tokens, codes, n_values)
    if total <= window:
        return _one_window(window, total, share)
    if mix is not None:
        return _every_window(window, total, share, *slide_along(tokens, codes, mix, window))
    return _every_window(window, total, share, *slide_documents(tokens, codes, share, window))


def shuffled_tokens(share: ArrayLike, window_tokens: int) -> tuple[float, float]:
    """(max over j, total variation) of the deviation that shuffling single tokens would leave on average.

    share: p, float (J,). Of n = window_tokens tokens drawn at random, the share of value j is off by
    sqrt(2 p_j (1 - p_j) / (pi n)) on average (mean absolute deviation of the binomial, by the normal law). The first
    number is the largest of these, that of the value whose p_j is nearest to 1/2: since a mean of maxima is at least
    the maximum of the means, `mean` is above it even for shuffled tokens. The second is half their sum: `mean_tv` of
    shuffled tokens.
    """
    p = np.asarray(share, np.float64)
    off = np.sqrt(2 * p * (1 - p) / (math.pi * positive("window_tokens", window_tokens)))
    return float(off.max(initial=0.0)), float(off.sum() / 2)


def _deviations(
    stream: NDArray[np.int64],
    lengths: NDArray[np.int64],
    rows: _Rows,
    own_unit: NDArray[np.bool_],
    window: int,
) -> tuple[WindowDeviation, ...]:
    from dagster_divorder.core.kernels.sliding_windows import slide, stream_totals

    total = int(lengths[stream].sum())
    n_groups = len(own_unit)
    totals = stream_totals(stream, rows.indptr, rows.indices, rows.data, len(rows.groups))
    sizes = np.bincount(rows.groups, totals, n_groups)
    share = totals / np.maximum(sizes, 1)[rows.groups]
    shares = [share[rows.groups == g] for g in range(n_groups)]
    if total <= window:
        return tuple(_one_window(window, total, of_group) for of_group in shares)
    n_values = np.bincount(rows.groups, minlength=n_groups)
    widths = 1 << np.ceil(np.log2(n_values)).astype(np.int64)
    # A value's number in its group: its rank among the columns of that group.
    rank = np.empty(len(rows.groups), np.int64)
    by_group = np.argsort(rows.groups, kind="stable")
    rank[by_group] = np.arange(len(by_group)) - (np.cumsum(n_values) - n_values).repeat(n_values)
    found = slide(
        stream,
        lengths,
        rows.indptr,
        rows.indices,
        rows.data,
        rows.groups,
        widths[rows.groups] + rank,
        share,
        own_unit,
        2 * (np.cumsum(widths) - widths),
        widths,
        window,
    )
    return tuple(
        _every_window(window, total, shares[g], *of_group)
        for g, of_group in enumerate(zip(*(column.tolist() for column in found), strict=True))
    )


def _every_window(
    window: int,
    total: int,
    share: NDArray[np.float64],
    worst: float,
    mean: float,
    worst_tv: float,
    mean_tv: float,
    start: int,
) -> WindowDeviation:
    ideal, ideal_tv = shuffled_tokens(share, window)
    return WindowDeviation(
        window_tokens=window,
        positions=total - window + 1,
        worst=worst,
        mean=mean,
        worst_tv=worst_tv,
        mean_tv=mean_tv,
        worst_start=start,
        partial=False,
        ideal=ideal,
        ideal_tv=ideal_tv,
    )


def _one_window(window: int, total: int, share: NDArray[np.float64]) -> WindowDeviation:
    """What is no longer than a window is the whole, and deviates from itself by nothing."""
    start = 0 if total else -1
    ideal = shuffled_tokens(share, window)
    return WindowDeviation(window, int(total > 0), 0.0, 0.0, 0.0, 0.0, start, 0 < total < window, *ideal)


def _checked(counts: Any, groups: ArrayLike) -> _Rows:
    indptr, indices, data = item_rows(counts)
    if data.dtype.kind == "f":
        if (data != np.rint(data)).any():
            raise InputError(f"counts is {data.dtype} and holds fractions; expected whole numbers of tokens")
        data = data.astype(np.int64)
    return _Rows(indptr=indptr, indices=indices, data=data, groups=group_numbers(groups, counts.shape[1]))
