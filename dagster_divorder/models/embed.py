"""Documents of token ids to vectors: first tokens, sorted by length, batched under a budget, through a Hugging Face
model, pooled and normalised.

Letters: n documents, T tokens of all of them, W windows, B of them in a batch, L tokens of the longest, D dims. A
budget counts positions (tokens with padding).
Guarantee: vectors are what transformers and sentence-transformers compute for the same tokens, within rounding. A
document with tokens gets a vector of length 1. A document without tokens gets zero, and so does one whose vector is not
finite, which is flagged. At most PADDING of a batch is padding, unless the batch is smaller than SMALL of the budget. A
batch that does not fit into memory is halved and tried again, and so are the batches after it.
Cost: the forward pass; everything else is some per cent of it (benchmarks/deep).
Known weakness: padding and batch mates change the last bits of a vector: 1e-6 in float32, 1e-2 in bfloat16. Where
memory runs out, machines batch, and round, differently.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.engine.base import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import check_vocabulary, first_line
from dagster_divorder.models.pretrained import load_module, quiet
from dagster_divorder.models.spec import EmbeddingSpec, Pooling

if TYPE_CHECKING:
    import torch

NOT_FINITE = 1
"""Flag of a document whose vector is not finite; zero is stored."""
PADDING, SMALL = 0.05, 1 / 8
CPU_BUDGET, GPU_BUDGET = 2048, 1 << 16
"""Positions of a batch. On a CPU larger batches leave its caches, and smaller ones repeat the cost of a batch; on a GPU
fewer already keep it busy, and padding rises with the budget (docs/decisions)."""


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
    """A loaded model and how it is fed; a call gives the pooled vectors of a batch of windows.

    dims: D. sharded: this process is one of several that compute together. needs_mask: the model needs a mask of the
    padding. A causal model does not, since no token sees what comes after it, and is faster without a mask: attention
    reads no L x L matrix and leaves out half of the products.
    budget: positions of a batch of more than one window; halved whenever memory runs out. threads: of a CPU.
    relief: for errors, what to do when memory is short.
    """

    relief = "spread the model over more GPUs with deep.tensor_parallel, or lower deep.max_tokens"

    def __init__(self, module: Any, spec: EmbeddingSpec, *, sharded: bool = False) -> None:
        self.module, self.spec, self.sharded = module, spec, sharded
        self.device = next(module.parameters()).device
        self.dims, self.needs_mask, self.threads = 0, True, 1
        self.budget: float = CPU_BUDGET if spec.device == "cpu" else GPU_BUDGET

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> torch.Tensor:
        """Vectors float32 (B, D), on the model's device. ids: int64 (B, L), padded on the right; lengths: int64 (B,),
        number of ids in each row without padding."""
        import torch

        with torch.inference_mode():
            tokens = torch.from_numpy(ids).to(self.device, non_blocking=True)
            real = torch.from_numpy(lengths).to(self.device, non_blocking=True)
            mask = torch.arange(ids.shape[1], device=self.device) < real[:, None]
            attention = {"attention_mask": mask.long()} if self.needs_mask else {}
            hidden = self.module(input_ids=tokens, **attention).last_hidden_state
            padded = bool(lengths.min() < ids.shape[1])
            vectors = _pool(hidden, mask if padded else None, real, self.spec.pooling)
            if self.sharded:
                # All processes must make the same decision about the vectors.
                torch.distributed.broadcast(vectors, 0)
            return vectors

    def embed(
        self,
        ids: NDArray[np.unsignedinteger],
        lengths: NDArray[np.int64],
        advance: Callable[[int], object] = lambda tokens: None,
    ) -> dict[str, NDArray[Any]]:
        """`vectors` of documents, float32 (n, D), and `flagged`, uint8 (n,), NOT_FINITE or 0. ids: (T,), end to end.
        lengths: (n,). advance: is called with the tokens done.

        Raises:
            InputError: a single window does not fit into memory.
            OutOfMemory: a batch did not fit, and this process is one of several that compute together.
        """
        spec = self.spec
        read = np.flatnonzero(lengths)
        begin = (np.cumsum(lengths, dtype=np.int64) - lengths)[read]
        length = np.minimum(lengths[read], spec.room).astype(np.int64)
        vectors = np.zeros((len(lengths), self.dims), dtype=np.float32)
        with quiet(), torch_threads(self.threads) if spec.device == "cpu" else nullcontext():
            vectors[read] = self._pooled(ids, begin, length, advance)
        finite = np.isfinite(vectors).all(axis=1)
        vectors[~finite] = 0
        return {"vectors": unit_rows(vectors), "flagged": np.where(finite, 0, NOT_FINITE).astype(np.uint8)}

    def _pooled(
        self,
        ids: NDArray[np.unsignedinteger],
        begin: NDArray[np.int64],
        length: NDArray[np.int64],
        advance: Callable[[int], object],
    ) -> NDArray[np.float32]:
        """Pooled vectors of windows, float32 (W, D); a row may hold NaN. begin, length: (W,), where the windows begin
        in `ids`, and their tokens."""
        order, added = np.argsort(-length, kind="stable"), self.spec.window - self.spec.room
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
        pooled = np.empty((len(order), self.dims), dtype=np.float32)
        for rows, vectors in batches:
            # Only this line waits for the GPU, so that the GPU never idles.
            pooled[rows] = vectors.cpu().numpy()
        return pooled

    def _padded(
        self, ids: NDArray[np.unsignedinteger], begin: NDArray[np.int64], length: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The ids of a batch, (B, L), the longest window first."""
        spec = self.spec
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
            return self(ids, lengths)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(ids) == 1:
                raise InputError(
                    f"memory ran out in a forward pass of {ids.size:,} tokens on {self.spec.device}; free some, "
                    f"{self.relief}"
                ) from error
            if self.sharded:  # the other processes hang in a collective: all have to begin again
                raise OutOfMemory(ids.size) from error
        # Here the error no longer keeps the tensors of its frames alive.
        release(self.spec.device)
        return None


def _pool(
    hidden: torch.Tensor, mask: torch.Tensor | None, real: torch.Tensor, pooling: Pooling
) -> torch.Tensor:
    """Pools hidden states (B, L, D) to vectors float32 (B, D): the first or the last of a row's `real` (B,) tokens, or
    the mean of the tokens in `mask` bool (B, L), None for all."""
    import torch

    if pooling == "cls":
        return hidden[:, 0].float()
    if pooling == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), real - 1].float()
    if mask is not None:  # not a product with zero, which is NaN for an infinite number
        hidden = hidden.masked_fill(~mask[:, :, None], 0)
    return hidden.sum(1, dtype=torch.float32) / real[:, None]


def load(directory: Path | str, spec: EmbeddingSpec, *, vocabulary: int = 0, processes: int = 1) -> Embedder:
    """The model of a checkpoint on `spec.device`, ready for a forward pass. vocabulary: one more than the largest token
    id. processes: how many processes share the model; each of them calls this.

    Raises:
        InputError: as `load_module`; its embedding has too few rows; it gives no hidden states of tokens.
    """
    directory = Path(directory)
    module = load_module(directory, "AutoModel", spec.device, spec.dtype, processes=processes)
    model = Embedder(module, spec, sharded=processes > 1)
    # Two short windows show whether it can be used.
    rows = [[*spec.prefix, *[1] * length, *spec.suffix] for length in (min(spec.room, 3), 1)]
    lengths = np.array([len(row) for row in rows])
    ids = np.array([row + [spec.pad] * (len(rows[0]) - len(row)) for row in rows])
    try:
        with quiet():
            vectors = model(ids, lengths)
        if vectors.ndim != 2 or len(vectors) != 2:
            raise ValueError(f"its hidden states are pooled to the shape {list(vectors.shape)}")
    except Exception as error:
        raise InputError(
            f"{directory} ({type(module).__name__}) has no forward pass from token ids and an attention mask to the "
            f"hidden states of tokens ({type(error).__name__}: {first_line(error)}); expected a causal or an encoder "
            "model of text"
        ) from error
    with quiet():
        model.dims, model.needs_mask = vectors.shape[1], sees_ahead(model, module)
    check_vocabulary(directory, len(module.get_input_embeddings().weight), vocabulary)
    return model


def sees_ahead(model: Embedder, module: Any) -> bool:
    """Whether a token's hidden state in a module of the model depends on later tokens: of two texts that begin alike,
    the beginnings then differ."""
    import torch

    length = min(model.spec.window, 16)
    with torch.inference_mode():
        # Both texts have one shape, so that a causal model rounds both alike.
        one, other = (
            module(
                input_ids=torch.tensor([[1, 2, *[end] * (length - 2)]], device=model.device)
            ).last_hidden_state[0, :2]
            for end in (3, 4)
        )
        differs = ~((one - other).abs().max() <= 1e-5 * one.abs().max())
        if model.sharded:
            torch.distributed.broadcast(differs, 0)
    return bool(differs)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """In this context each operation of torch runs on `threads` threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
