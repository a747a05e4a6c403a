"""Distances between copies in an order.

Letters: M items, r copies of one text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dagster_divorder.core.checks import whole_numbers


@dataclass(frozen=True)
class Spacing:
    """Distances between successive copies of a document, from one beginning to the next.

    copies: items that repeat an earlier one. smallest, median: distances in items; None without copies.
    smallest_share: the smallest distance over the even one, which is M / r for a document with r copies.
    smallest_tokens, median_tokens: the same in tokens; None without tokens.
    """

    copies: int
    smallest: int | None
    median: float | None
    smallest_share: float | None
    smallest_tokens: int | None
    median_tokens: float | None


def spacing(order: ArrayLike, copies: ArrayLike, tokens: ArrayLike | None = None) -> Spacing:
    """Distances of copies in an order, int (M,). copies, tokens: int (M,), by item, equal for copies."""
    items = np.asarray(order, np.int64)
    values = whole_numbers("copies", copies, len(items), least=None)
    # Only the values that repeat are kept, usually few, so that a single array of all is sorted.
    ordered = np.sort(values)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not repeated.size:
        return Spacing(0, None, None, None, None, None)
    del ordered
    places = np.flatnonzero(np.isin(values, repeated)[items])
    group = np.searchsorted(repeated, values[items[places]])
    by_text = np.argsort(group, kind="stable")
    places, group = places[by_text], group[by_text]
    repeats = np.flatnonzero(group[1:] == group[:-1])
    one, next_ = places[repeats], places[repeats + 1]
    distance = next_ - one
    share = distance * np.bincount(group)[group[repeats]] / len(items)
    smallest_tokens, median_tokens = None, None
    if tokens is not None:
        lengths = np.asarray(tokens, np.int64)[items]
        begin = np.cumsum(lengths) - lengths
        in_tokens = begin[next_] - begin[one]
        smallest_tokens, median_tokens = int(in_tokens.min()), float(np.median(in_tokens))
    return Spacing(
        copies=len(repeats),
        smallest=int(distance.min()),
        median=float(np.median(distance)),
        smallest_share=float(share.min()),
        smallest_tokens=smallest_tokens,
        median_tokens=median_tokens,
    )
