"""Windows of documents, and batches of windows of like length under a budget of tokens.

Letters: n documents, W windows.
Guarantee: with `chunk` every token is in exactly one window, else the first ones of each document are in one; a batch
holds at least one window, and no more than PADDING of a batch larger than SMALL of the budget is padding.
Cost: a sort. Known weakness: a handful of windows of very different length pad more than PADDING where the budget is
large beside them, since batches smaller than SMALL of it would keep no GPU busy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PADDING = 0.05
SMALL = 1 / 8


@dataclass(frozen=True, slots=True)
class Windows:
    """Stretches of documents that a model sees at once: `document` row, first token `start`, `length`; int64 (W,).

    Those of a document are neighbours, in its own order.
    """

    document: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.document)


def cut_windows(lengths: NDArray[np.int64], room: int, *, chunk: bool) -> Windows:
    """Windows of at most `room` tokens of documents of `lengths` tokens, (n,): with `chunk` as many as it takes, else
    the first alone. A document without tokens has none."""
    lengths = np.asarray(lengths, dtype=np.int64)
    count = -(-lengths // room) if chunk else np.minimum(lengths, 1)
    document = np.repeat(np.arange(len(lengths)), count)
    start = (np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)) * room
    return Windows(document, start, np.minimum(lengths[document] - start, room))


def batch_end(lengths: NDArray[np.int64], begin: int, budget: float, square: float = math.inf) -> int:
    """Where the batch that starts at `begin` ends.

    Args:
        lengths: of windows, longest first, int64 (W,).
        budget: positions of a batch, padding included.
        square: length at which a window takes twice its share of the budget, since attention's part of the memory grows
            with the square of the length.
    """
    longest = int(lengths[begin])
    rows = max(1, int(budget / (longest * (1 + longest / square))))
    taken = lengths[begin : begin + rows]
    positions = longest * np.arange(1, len(taken) + 1)
    fits = (positions <= SMALL * budget) | (np.cumsum(taken) >= (1 - PADDING) * positions)
    return begin + max(1, len(taken) if fits.all() else int(np.argmin(fits)))
