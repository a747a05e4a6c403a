"""The forward pass of a Hugging Face model: batches of token ids in, pooled hidden states out.

Letters: B windows of a batch, L tokens of the longest, D dims.
Guarantee: vectors are what transformers and sentence-transformers compute for the same tokens, within rounding.
Known weakness: padding and batch mates change the last bits of a vector: 1e-6 in float32, 1e-2 in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import check_vocabulary, first_line
from dagster_divorder.models.pretrained import load_module, quiet
from dagster_divorder.models.spec import EmbeddingSpec, Pooling

if TYPE_CHECKING:
    import torch


class Model:
    """A loaded model: called with a batch of windows, gives their pooled vectors.

    dims: D. sharded: this process is one of several that compute together. needs_mask: the model needs a mask of the
    padding. A causal model does not, since no token sees what comes after it, and is faster without a mask: attention
    reads no L x L matrix and leaves out half of the products.
    budget: positions of a batch; None if the device decides.
    relief: for errors, what to do when memory is short.
    """

    relief = "spread the model over more GPUs with deep.tensor_parallel, or lower deep.max_tokens"

    def __init__(self, module: Any, spec: EmbeddingSpec, *, sharded: bool = False) -> None:
        self.module = module
        self.spec = spec
        self.sharded = sharded
        self.device = next(module.parameters()).device
        self.dims = 0
        self.needs_mask = True
        self.budget: int | None = None

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


def load(directory: Path | str, spec: EmbeddingSpec, *, vocabulary: int = 0, processes: int = 1) -> Model:
    """The model of a checkpoint on `spec.device`, ready for a forward pass. vocabulary: one more than the largest token
    id. processes: how many processes share the model; each of them calls this.

    Raises:
        InputError: as `load_module`; its embedding has too few rows; it gives no hidden states of tokens.
    """
    directory = Path(directory)
    module = load_module(directory, "AutoModel", spec.device, spec.dtype, processes=processes)
    model = Model(module, spec, sharded=processes > 1)
    with quiet():
        _probe(directory, model)
    check_vocabulary(directory, len(module.get_input_embeddings().weight), vocabulary)
    return model


def _probe(directory: Path, model: Model) -> None:
    """Sets the model's `dims` and `needs_mask` by a forward pass of two short windows, and by `sees_ahead`."""
    spec = model.spec
    rows = [[*spec.prefix, *[1] * length, *spec.suffix] for length in (min(spec.room, 3), 1)]
    lengths = np.array([len(row) for row in rows])
    ids = np.array([row + [spec.pad] * (len(rows[0]) - len(row)) for row in rows])
    try:
        vectors = model(ids, lengths)
        if vectors.ndim != 2 or len(vectors) != 2:
            raise ValueError(f"its hidden states are pooled to the shape {list(vectors.shape)}")
    except Exception as error:
        raise InputError(
            f"{directory} ({type(model.module).__name__}) has no forward pass from token ids and an attention mask to "
            f"the hidden states of tokens ({type(error).__name__}: {first_line(error)}); expected a causal or an "
            "encoder model of text"
        ) from error
    model.dims = vectors.shape[1]
    model.needs_mask = sees_ahead(model, model.module)


def sees_ahead(model: Model, module: Any) -> bool:
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
