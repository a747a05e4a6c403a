"""Documents of token ids to vectors: windows sorted by length, batched under a budget, pooled and normalised.

Letters: n documents, T tokens of all of them, W windows, D dims.
Guarantee: a document with tokens gets a finite vector of length 1, a document without tokens zero. A batch that does
not fit into memory is cut and tried again; a window that never fits is read in parts. A vector that is not finite is
computed again, alone and in float32. Documents for which none of this helps are flagged. On a CPU the bytes do not
depend on the number of lanes.
Cost: the forward pass; everything else is some per cent of it (benchmarks/deep).
Known weakness: on a GPU the budget follows its memory, so other machines batch, and round, differently.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
    Budget,
    OutOfMemory,
    batch_end,
    cpu_lanes,
    cut_windows,
    power_of_two,
    release,
    solve,
)
from dagster_divorder.models.checkpoint import first_line
from dagster_divorder.models.deep import Model, torch_threads
from dagster_divorder.models.spec import quiet

if TYPE_CHECKING:
    import torch

NOT_FINITE = 1
"""Flag of a document whose own vector is not finite: it gets the mean of the others."""
CUT = 2
"""Flag of a document that was read in shorter windows because memory ran out."""

PROBES = (256, 2048)
"""Window lengths of the measured passes on a GPU; for a shorter context, half of it and all of it."""

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

    lanes: batches that run side by side, each on `threads` threads of a CPU. budget: of a batch of more than one
    window. hard_limit: most positions of a batch and of a window, None for no limit. positions_now: the current budget.
    """

    model: Model
    budget: Budget
    chunk: bool = False
    lanes: int = 1
    threads: int = 1
    hard_limit: int | None = None
    positions_now: float = field(init=False)
    fits_in_a_row: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.positions_now = self.budget.positions

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
        model = self.model
        windows = cut_windows(lengths, model.spec.room, chunk=self.chunk)
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        begin = starts[windows.document] + windows.start
        run = _ForwardPasses(self, ids, begin, windows.length, advance)
        on_cpu = model.spec.device == "cpu"
        with quiet(), torch_threads(self.threads) if on_cpu else nullcontext():
            of_windows = run.vectors()
        vectors = np.zeros((len(lengths), model.dims), dtype=np.float32)
        if len(windows):
            tokens_read = np.bincount(windows.document, windows.length, minlength=len(lengths))
            shares = (windows.length / tokens_read[windows.document])[:, None].astype(np.float32)
            first = np.flatnonzero(windows.start == 0)
            vectors[windows.document[first]] = np.add.reduceat(of_windows * shares, first, axis=0)
        finite = np.isfinite(vectors).all(axis=1)
        vectors[~finite] = 0
        vectors = unit_rows(vectors)
        flagged = np.zeros(len(lengths), dtype=np.uint8)
        flagged[windows.document[run.cut]] |= CUT
        flagged[~finite] |= NOT_FINITE
        if not finite.all():
            vectors[~finite] = unit_rows(vectors[finite & (lengths > 0)].sum(axis=0, keepdims=True))
        return Embedded(vectors, flagged, run.work)


def make_embedder(model: Model, *, chunk: bool, threads: int, hard_limit: int | None = None) -> Embedder:
    """An embedder for the model's device, with about `threads` threads on a CPU. hard_limit: most positions of a batch
    and of a window, if it is known that more do not fit."""
    import torch
    from joblib import cpu_count

    spec, config, each = model.spec, model.module.config.get_text_config(), model.position_bytes
    lanes = 1
    if hard_limit is not None:
        budget = Budget(hard_limit)
    elif spec.device == "cuda":
        budget = _measure_gpu(model)
    elif spec.device == "mps":  # peaks cannot be measured there
        free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        budget = Budget(power_of_two(SHARE * free / each, GPU_BUDGET))
    else:
        budget = Budget(model.cpu_budget)
    if spec.device == "cpu" and not model.sharded:
        # The model stores rotary frequencies that depend on a batch's longest window, so passes run one at a time.
        rotary = str(getattr(config, "rope_parameters", None))
        cores = cpu_count()
        most = 1 if "dynamic" in rotary or "longrope" in rotary else cpu_lanes(cores, spec.window, each)
        lanes, threads = max(1, min(most, threads // (cores // most))), cores // most
    return Embedder(model, budget, chunk=chunk, lanes=lanes, threads=threads, hard_limit=hard_limit)


def _measure_gpu(model: Model) -> Budget:
    """The budget from two measured passes of two windows each; the smallest of all processes that share the model."""
    import torch

    window, probes = model.spec.window, []
    try:
        for length in (min(PROBES[0], max(2, window // 2)), min(PROBES[1], max(2, window))):
            ids, lengths = np.full((2, length), model.spec.pad, np.int64), np.array([length, length - 1])
            model(ids, lengths)  # the first pass of a shape also loads kernels
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            model(ids, lengths)
            torch.cuda.synchronize()
            probes.append((2, length, torch.cuda.max_memory_allocated() - before))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if model.sharded:
            raise OutOfMemory(2 * CPU_BUDGET) from error
        release("cuda")
        return Budget(CPU_BUDGET)
    release("cuda")
    budget = solve(probes, torch.cuda.mem_get_info()[0])
    if not model.sharded:
        return budget
    least = torch.tensor([budget.positions, budget.square], dtype=torch.float64, device=model.device)
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
    return Budget(int(least[0]), float(least[1]))


@dataclass
class _ForwardPasses:
    """One call of `embed`. begin, length: (W,), where the windows begin in `ids`, and their tokens."""

    embedder: Embedder
    ids: NDArray[np.unsignedinteger]
    begin: NDArray[np.int64]
    length: NDArray[np.int64]
    advance: Callable[[int], object]

    def __post_init__(self) -> None:
        self.model, self.spec = self.embedder.model, self.embedder.model.spec
        self.added = len(self.spec.prefix) + len(self.spec.suffix)
        self.cut = np.zeros(len(self.begin), dtype=bool)
        """bool (W,), the windows that were read in parts."""
        self.work = Work()

    def vectors(self) -> NDArray[np.float32]:
        """Pooled vectors of the windows, float32 (W, D); a row may hold NaN."""
        order = np.argsort(-self.length, kind="stable")
        sizes = self.length[order] + self.added
        lanes, budget = self.embedder.lanes, self.embedder.budget
        batches: list[tuple[NDArray[np.int64], torch.Tensor | NDArray[np.float32]]] = []
        with ThreadPoolExecutor(lanes, thread_name_prefix="divorder-forward") as threads:
            todo = deque([(0, len(order))] if len(order) else [])
            waiting: deque[tuple[int, int, Future[torch.Tensor | None]]] = deque()
            while todo or waiting:
                # One batch more than lanes, so that it is padded while the others are computed.
                while todo and len(waiting) <= lanes:
                    begin, stop = todo.popleft()
                    end = batch_end(sizes[:stop], begin, self.embedder.positions_now, budget.square)
                    if end < stop:
                        todo.appendleft((end, stop))
                    rows = order[begin:end]
                    future = threads.submit(self._forward, self.begin[rows], self.length[rows])
                    waiting.append((begin, end, future))
                begin, end, future = waiting.popleft()
                rows = order[begin:end]
                vectors: torch.Tensor | NDArray[np.float32] | None = future.result()
                if vectors is not None:
                    self._count(sizes[begin:end])
                else:
                    wait([future for _, _, future in waiting])  # which frees their memory
                    self._shrink(int(sizes[begin]) * (end - begin))
                    if end - begin > 1:
                        todo.appendleft((begin, end))
                        continue
                    window = int(rows[0])
                    vectors = self._whole(window)[None]
                batches.append((rows, vectors))
                self.advance(int(self.length[rows].sum()))
        pooled = np.empty((len(order), self.model.dims), dtype=np.float32)
        for rows, vectors in batches:
            # Only this line waits for the GPU, so that the GPU never idles.
            pooled[rows] = vectors if isinstance(vectors, np.ndarray) else vectors.cpu().numpy()
        self._repair(pooled)
        return pooled

    def _forward(self, begin: NDArray[np.int64], length: NDArray[np.int64]) -> torch.Tensor | None:
        """Vectors of a batch, (B, D); None if memory ran out. Runs in a lane."""
        lengths = length + self.added
        ids = np.full((len(begin), int(lengths.max())), self.spec.pad, dtype=np.int64)
        first = len(self.spec.prefix)
        ids[:, :first] = self.spec.prefix
        for row, at, count in zip(ids, begin.tolist(), length.tolist(), strict=True):
            row[first : first + count] = self.ids[at : at + count]
            row[first + count : self.added + count] = self.spec.suffix
        if self.embedder.hard_limit is not None and len(ids) == 1 and ids.size > self.embedder.hard_limit:
            return None
        try:
            return self.model(ids, lengths)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if self.model.sharded:  # the other processes hang in a collective: all have to begin again
                raise OutOfMemory(ids.size) from error
        # Here the error no longer keeps the tensors of its frames alive.
        release(self.spec.device)
        return None

    def _shrink(self, failed: int) -> None:
        """Notes that a batch of `failed` positions did not fit."""
        self.work["out_of_memory"] += 1
        self.embedder.positions_now = max(1.0, min(self.embedder.positions_now, failed) / 2)
        self.embedder.fits_in_a_row = 0

    def _count(self, sizes: NDArray[np.int64]) -> None:
        """Notes a computed batch of windows of these sizes, longest first."""
        self.work += Work(tokens=int(sizes.sum()), positions=int(sizes[0]) * len(sizes), batches=1)
        self.embedder.fits_in_a_row += 1
        if self.embedder.fits_in_a_row >= GROW_AFTER:
            self.embedder.positions_now = min(2 * self.embedder.positions_now, self.embedder.budget.positions)
            self.embedder.fits_in_a_row = 0

    def _whole(self, window: int) -> NDArray[np.float32]:
        """The vector (D,) of a window."""
        return self._in_parts(window, int(self.begin[window]), int(self.length[window]))

    def _in_parts(self, window: int, begin: int, length: int) -> NDArray[np.float32]:
        """The vector (D,) of a window or a part of it, `length` ids from `begin` on; if it does not fit, the
        token-weighted mean of its halves."""
        vectors = self._forward(np.array([begin]), np.array([length]))
        if vectors is not None:
            self._count(np.array([length + self.added]))
            return vectors[0].cpu().numpy()
        if length <= SHORTEST:
            raise InputError(
                f"memory ran out in a forward pass of {length} tokens on {self.spec.device}; free some, or "
                f"{self.model.relief}"
            )
        self._shrink(length + self.added)
        self.cut[window] = True
        half = (length + 1) // 2
        first = self._in_parts(window, begin, half)
        second = self._in_parts(window, begin + half, length - half)
        return (half * first + (length - half) * second) / np.float32(length)

    def _repair(self, pooled: NDArray[np.float32]) -> None:
        """Computes vectors that are not finite again, each alone and in float32."""
        broken = np.flatnonzero(~np.isfinite(pooled).all(axis=1))
        if not len(broken):
            return
        try:
            with self.model.in_float32():
                for window in broken.tolist():
                    pooled[window] = self._whole(window)
        except OutOfMemory:
            raise
        except Exception as error:
            if not isinstance(error, InputError) and not is_out_of_memory(error):
                raise InputError(
                    f"{len(broken):,} windows have no finite vector in {self.spec.dtype}, and the model cannot read "
                    f"them in float32 ({type(error).__name__}: {first_line(error)}); set deep.dtype to another one"
                ) from error
            # No room for the model in float32, or (an InputError of `_in_parts`) for its shortest window.
            release(self.spec.device)
