"""Deviation of an order's prefixes from the corpus's mix, and how soon every cluster occurs.

A window is the difference of two prefixes, so a small prefix deviation bounds the deviation of every window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.stream import token_shares

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.stretch_windows import AskedMix

POINTS = 1000
"""Most points of a curve."""


@dataclass(frozen=True, eq=False)
class PrefixDeviation:
    """The prefix deviation in tokens, D(t) = sqrt(sum over the values j of all groups of (T_j(t) - p_j t)^2).

    mean, max: over every sequence end t = L, 2L, ..., the end of the data (D = 0 there); 0.0 without tokens.
    share, l2: float64 (P,) each, D at `share` of the corpus's tokens, thinned evenly from the same ends. T_j(t) is the
    number of tokens with trait value j among the first t, p_j its share of all tokens.
    """

    mean: float
    max: float
    share: NDArray[np.float64]
    l2: NDArray[np.float64]


def squares_in_stream(
    tokens: NDArray[np.int64],
    codes: NDArray[np.int32],
    n_values: int,
    sequence_length: int,
    mix: AskedMix | None = None,
) -> NDArray[np.float64]:
    """D(t)^2 of one group for documents already in order, at every sequence end, float64 (S,). mix: a moving mix
    (`core.measure.stretches`) that replaces the whole's p."""
    if mix is None:
        from dagster_divorder.core.kernels.windows import prefix_squares

        return prefix_squares(tokens, codes, token_shares(tokens, codes, n_values), sequence_length)
    from dagster_divorder.core.kernels.stretch_windows import deviations

    squares = np.zeros(-(-int(tokens.sum()) // sequence_length))
    ends = np.arange(1, len(squares)) * sequence_length
    squares[:-1] = (deviations(tokens, codes, mix, np.zeros_like(ends), ends)[2] * ends) ** 2
    return squares


def prefix_of(squares: NDArray[np.float64], total: int, sequence_length: int) -> PrefixDeviation:
    """The deviation of all groups together, with a curve of at most POINTS. squares: the sum of D(t)^2 over the groups,
    (S,). total: tokens."""
    sequences = len(squares)
    if not sequences:
        return PrefixDeviation(0.0, 0.0, np.zeros(0), np.zeros(0))
    l2 = np.sqrt(squares)
    points = min(POINTS, sequences)
    kept = np.arange(1, points + 1) * sequences // points - 1
    ends = np.minimum((kept + 1) * sequence_length, total)
    return PrefixDeviation(float(l2.mean()), float(l2.max()), ends / total, l2[kept])


def coverage_in_stream(tokens: NDArray[np.int64], codes: NDArray[np.int32], n_values: int) -> float:
    """Share of the tokens of documents in order after which every cluster has occurred, in (0, 1]; 0.0 without tokens.
    Clusters without tokens are ignored."""
    total = int(tokens.sum())
    if total == 0:
        return 0.0
    at = np.flatnonzero(tokens)
    first = np.full(n_values, -1, np.int64)
    # The last assignment to an index wins, so each value gets its first document.
    first[codes[at[::-1]]] = at[::-1]
    return (int(tokens[: first.max()].sum()) + 1) / total
