"""The windows with the largest deviation, and their contents.

Letters: N documents, S sequences, J trait values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive
from dagster_divorder.core.measure.stream import indices_in, tokens_in_order

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def window_contents(
    order: ArrayLike, tokens: ArrayLike, start: int, window_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(items of a window in order, int64 (n,); tokens of each in the window, int64 (n,)).

    The window is the tokens [start, start + window_tokens) of the items end to end, up to the end of the data. order:
    (M,) of items, possibly repeated. tokens: (items,).
    """
    stream = tokens_in_order(order, tokens)
    ends = np.cumsum(stream)
    begins = ends - stream
    end = start + positive("window_tokens", window_tokens)
    inside = np.minimum(ends, end) - np.maximum(begins, start)
    places = np.flatnonzero(inside > 0)
    return indices_in(order, len(np.asarray(tokens)))[places], inside[places]


def sequence_variation(counts: csr_matrix) -> NDArray[np.float64]:
    """Total variation between each sequence's shares of one trait and the whole's, float64 (S,); 0 without tokens.

    counts: CSR (S, J), tokens of each value in each sequence, without padding. With q the shares of a sequence and p
    the whole's, tv = sum_j max(0, q_j - p_j), which needs only the values in a sequence.
    """
    lengths = np.asarray(counts.sum(axis=1), np.int64).ravel()
    share = np.asarray(counts.sum(axis=0), np.int64).ravel() / max(int(lengths.sum()), 1)
    row = np.repeat(np.arange(len(lengths)), np.diff(counts.indptr))
    excess = np.maximum(counts.data / np.maximum(lengths, 1)[row] - share[counts.indices], 0.0)
    return np.bincount(row, excess, len(lengths)).astype(np.float64)
