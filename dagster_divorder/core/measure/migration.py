"""Positions of documents before and after ordering, for the films.

Letters: M documents, C cells, P points, F frames.
Guarantee: cells are tokens at even distances in the ordered dataset, so a document has cells in proportion to its
tokens. The same input gives the same cells.
Cost: O(M) and 16 bytes a document; C and F do not grow with the corpus.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import positive
from dagster_divorder.core.measure.along import tokens_in_order


@dataclass(frozen=True, eq=False)
class Cells:
    """Sampled tokens in their new order: document int64 (C,), and rank int64 (C,) in the original order. C is at most
    the number of tokens."""

    document: NDArray[np.int64]
    original_rank: NDArray[np.int64]


def sample_cells(order: ArrayLike, tokens: ArrayLike, cells: int) -> Cells:
    """`cells` tokens at even distances along an order, int (M,), of documents with `tokens`, int (M,).

    Raises:
        InputError: cells is below 1, or order and tokens do not match.
    """
    ends = np.cumsum(tokens_in_order(order, tokens))
    total = int(ends[-1]) if len(ends) else 0
    cells = min(positive("cells", cells), total)
    # The middles of equal parts.
    at = (2 * np.arange(cells, dtype=np.int64) + 1) * total // max(1, 2 * cells)
    place = np.searchsorted(ends, at, side="right")
    document = np.asarray(order, np.int64)[place]
    within = at - (ends[place] - np.asarray(tokens, np.int64)[document])
    rank = np.empty(cells, np.int64)
    rank[np.lexsort((within, document))] = np.arange(cells)
    return Cells(document, rank)


def migrated(cells: Cells, placed: int) -> NDArray[np.int64]:
    """Cells, int64 (C,): the first `placed` ones in their new order, then the others in their original order."""
    waiting = np.arange(placed, len(cells.original_rank))
    return np.concatenate(
        [np.arange(placed), waiting[np.argsort(cells.original_rank[placed:], kind="stable")]]
    )


def frame_ends(items: int, frames: int) -> NDArray[np.int64]:
    """Number of items shown in each frame, int64 (F,): from none to all in even steps."""
    return np.arange(positive("frames", frames), dtype=np.int64) * items // max(1, frames - 1)
