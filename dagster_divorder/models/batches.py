"""Windows of documents, batches of windows of like length under a budget, and the budget that memory allows.

Letters: n documents, W windows.
Guarantee: with `chunk` every token is in exactly one window, else the first ones of each document are in one; a batch
holds at least one window, and no more than PADDING of a batch larger than SMALL of the budget is padding.
A budget counts positions (tokens with padding). On a GPU it comes from the memory that is free once the model is
loaded and from two measured forward passes; elsewhere from what the architecture keeps of a position. It is a power of
two, so that it is the same from run to run although free memory never is to the byte.
Cost: a sort, and on a GPU four short forward passes.
Known weakness: a handful of windows of very different length pad more than PADDING where the budget is large beside
them, since batches smaller than SMALL of it would keep no GPU busy; what others take of the same GPU later is not
foreseen (a batch that does not fit is cut, see `embed`).
"""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.engine.memory import MODEL_BYTES

PADDING = 0.05
SMALL = 1 / 8

CPU_BUDGET = 2048
"""Positions of a batch on a CPU: more of them leave its caches, fewer repeat what a batch costs (docs/decisions)."""

GPU_BUDGET = 1 << 16
"""At most: a GPU is busy long before, and padding rises with the budget."""

SHARE = 0.7
"""Of the free memory that a batch may take on a GPU."""

SHORTEST = 16
"""A window that does not fit is cut in two down to this many tokens."""


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


class OutOfMemory(Exception):
    """A batch of `positions` did not fit, and the processes that shared it cannot go on."""

    def __init__(self, positions: int) -> None:
        super().__init__(positions)
        self.positions = positions


@dataclass(frozen=True, slots=True)
class Budget:
    """Positions of a batch, and the length at which a window takes twice its share (see `batch_end`)."""

    positions: int
    square: float = math.inf


def position_bytes(config: Any, itemsize: int) -> int:
    """Bytes that a forward pass keeps of a position at its peak, roughly: residual, normalised input, queries, keys,
    values and output (8 widths), and the three parts of a gated MLP."""
    width = getattr(config, "hidden_size", 1024)
    inner = getattr(config, "intermediate_size", None) or 4 * width
    return itemsize * (8 * width + 3 * (inner if isinstance(inner, int) else max(inner)))


def solve(probes: list[tuple[int, int, int]], free: int) -> Budget:
    """The budget for `free` bytes, from measured passes (rows, length, peak bytes), short one first:
    peak = rows * (a length + b length^2)."""
    (rows, short, low), (more, long, high) = probes
    one, two = low / (rows * short), high / (more * long)
    b = max(0.0, (two - one) / (long - short)) if long > short else 0.0
    a = max(one - b * short, one / 16, 1.0)
    square = a / b if b > 0 else math.inf
    return Budget(power_of_two(SHARE * free / a, GPU_BUDGET), square)


def cpu_lanes(cores: int, window: int, bytes_each: int) -> int:
    """Batches that run side by side on a CPU: one a core where memory allows it, then each on one thread.

    Faster than all cores on one batch, most of all on a busy machine, where threads of one batch wait for each other,
    and the same bytes whatever their number. What is free at the moment does not count, since the threads that are
    left for each batch do change last bits.
    """
    share = MODEL_BYTES / (max(CPU_BUDGET, window) * bytes_each)
    return max(1, min(cores, int(share)))


def power_of_two(most: float, limit: int) -> int:
    """The largest power of two up to both."""
    return 1 << max(0, math.floor(math.log2(max(1.0, min(most, limit)))))


def release(device: str) -> None:
    """Give back what a forward pass left behind on a GPU."""
    import torch

    if device == "cpu":
        return
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    else:
        torch.mps.empty_cache()
