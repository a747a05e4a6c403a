"""Documents of token ids to vectors: first tokens, sorted by length, batched under a budget, pooled and normalised.

Letters: n documents, T tokens of all of them, W windows, D dims. A budget counts positions (tokens with padding).
Guarantee: a document with tokens gets a vector of length 1. A document without tokens gets zero, and so does one whose
vector is not finite, which is flagged. At most PADDING of a batch is padding, unless the batch is smaller than SMALL of
the budget. A batch that does not fit into memory is halved and tried again, and so are the batches after it.
Cost: the forward pass; everything else is some per cent of it (benchmarks/deep).
Known weakness: where memory runs out, machines batch, and round, differently.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.engine.memory import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.deep import Model, torch_threads
from dagster_divorder.models.pretrained import quiet

if TYPE_CHECKING:
    import torch

NOT_FINITE = 1
"""Flag of a document whose vector is not finite; zero is stored."""
PADDING, SMALL = 0.05, 1 / 8
CPU_BUDGET, GPU_BUDGET = 2048, 1 << 16
"""Positions of a batch. On a CPU larger batches leave its caches, and smaller ones repeat the cost of a batch; on a GPU
fewer already keep it busy, and padding rises with the budget (docs/decisions)."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """`vectors` float32 (n, D); `flagged` uint8 (n,), NOT_FINITE or 0."""

    vectors: NDArray[np.float32]
    flagged: NDArray[np.uint8]


class OutOfMemory(Exception):
    """A batch of `positions` did not fit, and the processes that shared it cannot go on."""

    def __init__(self, positions: int) -> None:
        super().__init__(positions)
        self.positions = positions


def batch_end(lengths: NDArray[np.int64], begin: int, budget: float) -> int:
    """Where the batch that starts at `begin` ends. lengths: of windows, longest first, int64 (W,). budget: positions of
    a batch."""
    longest = int(lengths[begin])
    rows = max(1, int(budget / longest))
    candidates = lengths[begin : begin + rows]
    positions = longest * np.arange(1, len(candidates) + 1)
    fits = (positions <= SMALL * budget) | (np.cumsum(candidates) >= (1 - PADDING) * positions)
    return begin + max(1, len(candidates) if fits.all() else int(np.argmin(fits)))


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


class Embedder:
    """A model and how it is fed.

    budget: positions of a batch of more than one window, by default what the model or its device takes; halved whenever
    memory runs out. threads: of a CPU.
    """

    def __init__(self, model: Model, budget: float | None = None, *, threads: int = 1) -> None:
        usual = CPU_BUDGET if model.spec.device == "cpu" else GPU_BUDGET
        self.model, self.threads = model, threads
        self.budget: float = budget or model.budget or usual

    def embed(
        self,
        ids: NDArray[np.unsignedinteger],
        lengths: NDArray[np.int64],
        advance: Callable[[int], object] = lambda tokens: None,
    ) -> Embedded:
        """Vectors of documents: `ids` (T,), end to end, and `lengths` (n,). `advance` is called with the tokens done.

        Raises:
            InputError: a single window does not fit into memory.
            OutOfMemory: a batch did not fit, and this process is one of several that compute together.
        """
        spec = self.model.spec
        read = np.flatnonzero(lengths)
        begin = (np.cumsum(lengths, dtype=np.int64) - lengths)[read]
        length = np.minimum(lengths[read], spec.room).astype(np.int64)
        vectors = np.zeros((len(lengths), self.model.dims), dtype=np.float32)
        with quiet(), torch_threads(self.threads) if spec.device == "cpu" else nullcontext():
            vectors[read] = self._pooled(ids, begin, length, advance)
        finite = np.isfinite(vectors).all(axis=1)
        vectors[~finite] = 0
        return Embedded(unit_rows(vectors), np.where(finite, 0, NOT_FINITE).astype(np.uint8))

    def _pooled(
        self,
        ids: NDArray[np.unsignedinteger],
        begin: NDArray[np.int64],
        length: NDArray[np.int64],
        advance: Callable[[int], object],
    ) -> NDArray[np.float32]:
        """Pooled vectors of windows, float32 (W, D); a row may hold NaN. begin, length: (W,), where the windows begin
        in `ids`, and their tokens."""
        order, added = np.argsort(-length, kind="stable"), self.model.spec.window - self.model.spec.room
        sizes = length[order] + added
        batches: list[tuple[NDArray[np.int64], torch.Tensor]] = []
        first = 0
        while first < len(order):
            end = batch_end(sizes, first, self.budget)
            rows = order[first:end]
            vectors = self._forward(self._padded(ids, begin[rows], length[rows]), sizes[first:end])
            if vectors is None:
                self.budget = int(sizes[first]) * (end - first) / 2
                continue
            batches.append((rows, vectors))
            advance(int(length[rows].sum()))
            first = end
        pooled = np.empty((len(order), self.model.dims), dtype=np.float32)
        for rows, vectors in batches:
            # Only this line waits for the GPU, so that the GPU never idles.
            pooled[rows] = vectors.cpu().numpy()
        return pooled

    def _padded(
        self, ids: NDArray[np.unsignedinteger], begin: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The ids of a batch, (B, L), the longest window first."""
        spec = self.model.spec
        before, after = len(spec.prefix), len(spec.suffix)
        padded = np.full((len(begin), before + int(length[0]) + after), spec.pad, dtype=np.int64)
        padded[:, :before] = spec.prefix
        for row, at, count in zip(padded, begin.tolist(), length.tolist(), strict=True):
            row[before : before + count] = ids[at : at + count]
            row[before + count : before + count + after] = spec.suffix
        return padded

    def _forward(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> torch.Tensor | None:
        """Vectors of a batch, (B, D); None if memory ran out and there are windows to leave out."""
        try:
            return self.model(ids, lengths)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(ids) == 1:
                raise InputError(
                    f"memory ran out in a forward pass of {ids.size:,} tokens on {self.model.spec.device}; free some, "
                    f"{self.model.relief}"
                ) from error
            if self.model.sharded:  # the other processes hang in a collective: all have to begin again
                raise OutOfMemory(ids.size) from error
        # Here the error no longer keeps the tensors of its frames alive.
        release(self.model.spec.device)
        return None
