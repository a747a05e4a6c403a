"""Cuts documents into windows, and batches windows of similar length under a budget.

Letters: n documents, W windows.
Guarantee: every token is in exactly one window. A batch holds at least one window. At most PADDING of a batch is
padding, unless the batch is smaller than SMALL of the budget. A budget counts positions (tokens with padding).
Cost: a sort.
Known weakness: a few windows of very different lengths pad more than PADDING if the budget is large beside them, since
batches smaller than SMALL of it would leave a GPU idle. What memory takes is not foreseen: `embed` halves a batch that
does not fit.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PADDING = 0.05
SMALL = 1 / 8

CPU_BUDGET = 2048
"""Positions of a batch on a CPU: larger batches leave its caches, smaller ones repeat the cost of a batch
(docs/decisions)."""

GPU_BUDGET = 1 << 16
"""Positions of a batch on a GPU: fewer already keep it busy, and padding rises with the budget."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Stretches of documents that a model sees at once, int64 (W,): `document` row, first token `start`, and
    `length`.

    The windows of a document stand together, in order.
    """

    document: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.document)


def cut_windows(lengths: NDArray[np.int64], room: int) -> Windows:
    """Windows of at most `room` tokens of documents with `lengths` tokens, (n,). A document without tokens has none."""
    lengths = np.asarray(lengths, dtype=np.int64)
    count = -(-lengths // room)
    document = np.repeat(np.arange(len(lengths)), count)
    place = np.arange(len(document)) - np.repeat(np.cumsum(count) - count, count)
    start = place * room
    return Windows(document, start, np.minimum(lengths[document] - start, room))


def batch_end(lengths: NDArray[np.int64], begin: int, budget: float) -> int:
    """Where the batch that starts at `begin` ends. lengths: of windows, longest first, int64 (W,). budget: positions of
    a batch."""
    longest = int(lengths[begin])
    rows = max(1, int(budget / longest))
    candidates = lengths[begin : begin + rows]
    positions = longest * np.arange(1, len(candidates) + 1)
    fits = (positions <= SMALL * budget) | (np.cumsum(candidates) >= (1 - PADDING) * positions)
    return begin + max(1, len(candidates) if fits.all() else int(np.argmin(fits)))


class OutOfMemory(Exception):
    """A batch of `positions` did not fit, and the processes that shared it cannot go on."""

    def __init__(self, positions: int) -> None:
        super().__init__(positions)
        self.positions = positions


def release(device: str) -> None:
    """Free a GPU's cached memory after a forward pass."""
    import torch

    if device == "cpu":
        return
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    else:
        torch.mps.empty_cache()
