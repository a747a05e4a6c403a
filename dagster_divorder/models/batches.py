"""Cuts documents into windows, batches windows of similar length under a budget, and finds the budget for the memory.

Letters: n documents, W windows.
Guarantee: every token is in exactly one window. A batch holds at least one window. At most PADDING of a batch is
padding, unless the batch is smaller than SMALL of the budget. A budget counts positions (tokens with padding). On a GPU
it comes from the free memory once the model is loaded and from what the architecture keeps of a position. It is a power
of two, so that small changes of the free memory do not change it from run to run.
Cost: a sort.
Known weakness: a few windows of very different lengths pad more than PADDING if the budget is large beside them, since
batches smaller than SMALL of it would leave a GPU idle. Memory that attention without sdpa takes, or other processes
take later, is not foreseen (`embed` halves a batch that does not fit).
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

PADDING = 0.05
SMALL = 1 / 8

CPU_BUDGET = 2048
"""Positions of a batch on a CPU: larger batches leave its caches, smaller ones repeat the cost of a batch
(docs/decisions)."""

GPU_BUDGET = 1 << 16
"""Most positions of a batch on a GPU: fewer already keep it busy, and padding rises with the budget."""

SHARE = 0.7
"""Share of the free memory that a batch may take on a GPU."""


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


def position_bytes(config: Any, itemsize: int) -> int:
    """Approximate bytes of a position at the peak of a forward pass: residual, normalised input, queries, keys, values
    and output (8 widths), and the three matrices of a gated MLP."""
    width = getattr(config, "hidden_size", 1024)
    inner = getattr(config, "intermediate_size", None) or 4 * width
    return itemsize * (8 * width + 3 * (inner if isinstance(inner, int) else max(inner)))


def power_of_two(most: float, limit: int) -> int:
    """The largest power of two that is at most `most` and at most `limit`, but at least 1."""
    return 1 << max(0, math.floor(math.log2(max(1.0, min(most, limit)))))


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
