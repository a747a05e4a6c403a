"""Documents of token ids to vectors: windows sorted by length, batched under a budget, pooled and normalised.

Letters: n documents, T tokens of all of them, W windows, D dims.
Guarantee: a document with tokens gets a vector of length 1. A document without tokens gets zero, and so does one whose
vector is not finite, which is flagged. A batch that does not fit into memory is cut and tried again; a window that
never fits is read in parts.
Cost: the forward pass; everything else is some per cent of it (benchmarks/deep).
Known weakness: on a GPU the budget follows its memory, so other machines batch, and round, differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.engine.memory import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.batches import (
    CPU_BUDGET,
    GPU_BUDGET,
    SHARE,
    SHORTEST,
    OutOfMemory,
    batch_end,
    cut_windows,
    position_bytes,
    power_of_two,
    release,
)
from dagster_divorder.models.deep import Model, torch_threads
from dagster_divorder.models.spec import quiet

if TYPE_CHECKING:
    import torch

NOT_FINITE = 1
"""Flag of a document whose vector is not finite; zero is stored."""
CUT = 2
"""Flag of a document that was read in shorter windows because memory ran out."""

GROW_AFTER = 8
"""Batches in a row that must fit before a halved budget doubles again."""


Work = Counter[str]
"""Counts of the work: `tokens` through the model, including special ones, in `positions` of `batches`; and
`out_of_memory`, how often memory ran out."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """`vectors` float32 (n, D); `flagged` uint8 (n,), NOT_FINITE and CUT or 0; `work`."""

    vectors: NDArray[np.float32]
    flagged: NDArray[np.uint8]
    work: Work


@dataclass
class Embedder:
    """A model and how it is fed.

    budget: positions of a batch of more than one window. chunk: read all windows of a document, not the first alone.
    threads: of a CPU. hard_limit: most positions of a batch and of a window, None for no limit. positions_now: the
    current budget.
    """

    model: Model
    budget: int
    chunk: bool = False
    threads: int = 1
    hard_limit: int | None = None
    positions_now: float = field(init=False)
    fits_in_a_row: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.positions_now = self.budget

    def embed(
        self,
        ids: NDArray[np.unsignedinteger],
        lengths: NDArray[np.int64],
        advance: Callable[[int], object] = lambda tokens: None,
    ) -> Embedded:
        """Vectors of documents: `ids` (T,), end to end, and `lengths` (n,). `advance` is called with the tokens done.

        Raises:
            InputError: not even SHORTEST tokens fit into memory.
            OutOfMemory: a batch did not fit, and this process is one of several that compute together.
        """
        spec = self.model.spec
        windows = cut_windows(lengths, spec.room, chunk=self.chunk)
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        forward = _Forward(self, ids, starts[windows.document] + windows.start, windows.length)
        with quiet(), torch_threads(self.threads) if spec.device == "cpu" else nullcontext():
            of_windows = forward.vectors(advance)
        vectors = np.zeros((len(lengths), self.model.dims), dtype=np.float32)
        if len(windows):
            tokens_read = np.bincount(windows.document, windows.length, minlength=len(lengths))
            shares = (windows.length / tokens_read[windows.document])[:, None].astype(np.float32)
            first = np.flatnonzero(windows.start == 0)
            vectors[windows.document[first]] = np.add.reduceat(of_windows * shares, first, axis=0)
        finite = np.isfinite(vectors).all(axis=1)
        vectors[~finite] = 0
        flagged = np.where(finite, 0, NOT_FINITE).astype(np.uint8)
        flagged[windows.document[forward.cut]] |= CUT
        return Embedded(unit_rows(vectors), flagged, forward.work)


def make_embedder(model: Model, *, chunk: bool, threads: int, hard_limit: int | None = None) -> Embedder:
    """An embedder for the model's device, with `threads` threads on a CPU. hard_limit: most positions of a batch and of
    a window, if it is known that more do not fit."""
    budget = _budget(model) if hard_limit is None else hard_limit
    return Embedder(model, budget, chunk=chunk, threads=threads, hard_limit=hard_limit)


def _budget(model: Model) -> int:
    """Positions of a batch for the device's free memory; the smallest of all processes that share the model."""
    import torch

    device = model.spec.device
    if model.budget or device == "cpu":
        return model.budget or CPU_BUDGET
    free = (
        torch.cuda.mem_get_info()[0]
        if device == "cuda"
        else torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    )
    itemsize = torch.finfo(getattr(torch, model.spec.dtype)).bits // 8
    each = position_bytes(model.module.config.get_text_config(), itemsize)
    budget = power_of_two(SHARE * free / each, GPU_BUDGET)
    if not model.sharded:
        return budget
    least = torch.tensor(budget, device=model.device)
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
    return int(least)


class _Forward:
    """The forward passes of one call of `embed`. begin, length: (W,), where the windows begin in `ids`, and their
    tokens. cut: bool (W,), the windows that were read in parts."""

    def __init__(
        self,
        embedder: Embedder,
        ids: NDArray[np.unsignedinteger],
        begin: NDArray[np.int64],
        length: NDArray[np.int64],
    ) -> None:
        self.embedder, self.ids, self.begin, self.length = embedder, ids, begin, length
        self.model, self.spec = embedder.model, embedder.model.spec
        self.added = len(self.spec.prefix) + len(self.spec.suffix)
        self.cut = np.zeros(len(begin), dtype=bool)
        self.work = Work()

    def vectors(self, advance: Callable[[int], object]) -> NDArray[np.float32]:
        """Pooled vectors of the windows, float32 (W, D); a row may hold NaN."""
        order = np.argsort(-self.length, kind="stable")
        sizes = self.length[order] + self.added
        batches: list[tuple[NDArray[np.int64], torch.Tensor | NDArray[np.float32]]] = []
        begin = 0
        while begin < len(order):
            end = batch_end(sizes, begin, self.embedder.positions_now)
            rows = order[begin:end]
            vectors: torch.Tensor | NDArray[np.float32] | None = self._pass(
                self.begin[rows], self.length[rows]
            )
            if vectors is None and len(rows) > 1:
                continue
            if vectors is None:
                self.cut[rows] = True
                vectors = self._in_parts(int(self.begin[rows[0]]), int(self.length[rows[0]]))[None]
            batches.append((rows, vectors))
            advance(int(self.length[rows].sum()))
            begin = end
        pooled = np.empty((len(order), self.model.dims), dtype=np.float32)
        for rows, vectors in batches:
            # Only this line waits for the GPU, so that the GPU never idles.
            pooled[rows] = vectors if isinstance(vectors, np.ndarray) else vectors.cpu().numpy()
        return pooled

    def _pass(self, begin: NDArray[np.int64], length: NDArray[np.int64]) -> torch.Tensor | None:
        """Vectors of a batch, (B, D); None if memory ran out. The longest window is the first."""
        lengths = length + self.added
        ids = np.full((len(lengths), lengths[0]), self.spec.pad, dtype=np.int64)
        first = len(self.spec.prefix)
        ids[:, :first] = self.spec.prefix
        for row, at, count in zip(ids, begin.tolist(), length.tolist(), strict=True):
            row[first : first + count] = self.ids[at : at + count]
            row[first + count : self.added + count] = self.spec.suffix
        limit = self.embedder.hard_limit
        if limit is None or len(ids) > 1 or ids.size <= limit:
            try:
                vectors = self.model(ids, lengths)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if self.model.sharded:  # the other processes hang in a collective: all have to begin again
                    raise OutOfMemory(ids.size) from error
            else:
                self._fitted(lengths, ids.size)
                return vectors
            # Here the error no longer keeps the tensors of its frames alive.
            release(self.spec.device)
        self.work["out_of_memory"] += 1
        self.embedder.positions_now = max(1.0, min(self.embedder.positions_now, ids.size) / 2)
        self.embedder.fits_in_a_row = 0
        return None

    def _fitted(self, lengths: NDArray[np.int64], positions: int) -> None:
        """Notes a batch that was computed."""
        self.work += Work(tokens=int(lengths.sum()), positions=positions, batches=1)
        self.embedder.fits_in_a_row += 1
        if self.embedder.fits_in_a_row >= GROW_AFTER:
            self.embedder.positions_now = min(2 * self.embedder.positions_now, self.embedder.budget)
            self.embedder.fits_in_a_row = 0

    def _in_parts(self, begin: int, length: int) -> NDArray[np.float32]:
        """The vector (D,) of `length` ids from `begin` on, which do not fit: the mean of their halves, by tokens."""
        if length <= SHORTEST:
            raise InputError(
                f"memory ran out in a forward pass of {length} tokens on {self.spec.device}; free some, or "
                f"{self.model.relief}"
            )
        half, total = (length + 1) // 2, np.zeros(self.model.dims, dtype=np.float32)
        for at, count in ((begin, half), (begin + half, length - half)):
            vectors = self._pass(np.array([at]), np.array([count]))
            total += count * (self._in_parts(at, count) if vectors is None else vectors[0].cpu().numpy())
        return total / np.float32(length)
