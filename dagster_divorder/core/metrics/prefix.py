"""How far the growing prefix of an order strays from the corpus's mix, and how soon it shows every cluster.

A window is the difference of two prefixes, so a small prefix deviation bounds the deviation of every window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive
from dagster_divorder.core.metrics.stream import (
    codes_in_order,
    n_values_of,
    token_shares,
    tokens_in_order,
)


@dataclass(frozen=True, eq=False)
class PrefixDeviation:
    """The prefix deviation in tokens, D(t) = sqrt(sum over the values j of all groups of (T_j(t) - p_j t)^2).

    mean, max: over every sequence end t = L, 2L, ..., the end of the data (D = 0 there); 0.0 without tokens.
    share, l2: float64 (P,) each, D at `share` of the corpus's tokens, thinned evenly from the same ends.
    """

    mean: float
    max: float
    share: NDArray[np.float64]
    l2: NDArray[np.float64]


def prefix_deviation(
    order: ArrayLike,
    tokens: ArrayLike,
    codes: Sequence[ArrayLike],
    sequence_length: int,
    *,
    points: int = 1000,
) -> PrefixDeviation:
    """D at every sequence end over the trait groups `codes` (G arrays (N,)); its curve has at most `points`.

    T_j(t) is the number of tokens with trait value j among the first t, p_j its share of all tokens.
    """
    documents = len(np.asarray(tokens))
    values = [n_values_of(group) for group in codes]
    groups = [codes_in_order(order, group, j, documents) for group, j in zip(codes, values, strict=True)]
    stream = tokens_in_order(order, tokens)
    return prefix_in_stream(stream, groups, values, positive("sequence_length", sequence_length), points)


def prefix_in_stream(
    tokens: NDArray[np.int64],
    groups: Sequence[NDArray[np.int32]],
    n_values: Sequence[int],
    sequence_length: int,
    points: int = 1000,
) -> PrefixDeviation:
    """The same for documents already in order."""
    from dagster_divorder.core.kernels.windows import add_prefix_squares

    positive("points", points)
    total = int(tokens.sum())
    sequences = -(-total // sequence_length)
    if total == 0:
        return PrefixDeviation(0.0, 0.0, np.zeros(0), np.zeros(0))
    squares = np.zeros(sequences)
    for codes, j in zip(groups, n_values, strict=True):
        add_prefix_squares(tokens, codes, token_shares(tokens, codes, j), sequence_length, squares)
    l2 = np.sqrt(squares)
    kept = np.arange(1, min(points, sequences) + 1) * sequences // min(points, sequences) - 1
    ends = np.minimum((kept + 1) * sequence_length, total)
    return PrefixDeviation(float(l2.mean()), float(l2.max()), ends / total, l2[kept])


def coverage(order: ArrayLike, tokens: ArrayLike, labels: ArrayLike) -> float:
    """The share of the corpus's tokens after which every cluster has been seen, in (0, 1]; 0.0 without any.

    A cluster is seen at its first token; one whose documents have no tokens is never waited for.
    """
    stream = tokens_in_order(order, tokens)
    n_values = n_values_of(labels)
    codes = codes_in_order(order, labels, n_values, len(np.asarray(tokens)))
    return coverage_in_stream(stream, codes, n_values)


def coverage_in_stream(tokens: NDArray[np.int64], codes: NDArray[np.int32], n_values: int) -> float:
    """The same for documents already in order."""
    total = int(tokens.sum())
    if total == 0:
        return 0.0
    at = np.flatnonzero(tokens)
    first = np.full(n_values, -1, np.int64)
    # Of equal indices the last assignment stays: each value's first document.
    first[codes[at[::-1]]] = at[::-1]
    return (int(tokens[: first.max()].sum()) + 1) / total
