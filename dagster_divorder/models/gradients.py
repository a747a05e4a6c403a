"""The gradient of each document's loss under a causal language model, projected at random.

Letters: B windows of a batch, L tokens of the longest, D width, V vocabulary, P parameters, K dims.

    g = d/dw  mean_t -log p(x_t | x_1 ... x_t-1),    z = R g / sqrt(K)

w are the parameters of the last blocks. R (K x P) holds +1 and -1, each with probability 1/2, so inner products of z
equal those of g in expectation, with a variance of at most 2 / K for gradients of length 1. R is never stored: a sign
is one bit of a hash of the seed, the parameter's name, the entry's place in it and the row. So a sign is the same on
every machine and for every division into batches.

Guarantee: for each document the gradient of autograd for it alone. Neither batches nor the number of workers change the
bytes.
Cost: a forward pass, a backward pass through the last blocks, and 2 K P more for each document. Documents pass one at a
time, so short ones leave a GPU idle. The signs cost as much as some 60 documents, so documents are projected together:
their gradients take P float32 numbers each.
Sources: Achlioptas 2003 (signs keep distances); Steele, Lea and Flood 2014 (the hash, SplitMix64's finaliser); Jung et
al. 2025 (gradients describe what a document teaches).
Known weakness: the experts of a mixture are left out, since most of them see none of a document's tokens.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import check_vocabulary
from dagster_divorder.models.embed import Embedder, sees_ahead
from dagster_divorder.models.pretrained import load_module, quiet
from dagster_divorder.models.spec import EmbeddingSpec

if TYPE_CHECKING:
    import torch

MODEL_BYTES = 2 << 30
"""Bytes of all batches of a model that run in parallel on a CPU."""

ROWS, BUFFER_BYTES = 64, 8 << 30
"""Most documents that are projected together, and most bytes of gradients that wait for it on a GPU; on a CPU they take
MODEL_BYTES."""
TILE = {"cpu": 1 << 20, "cuda": 1 << 26, "mps": 1 << 24}
"""Entries of R that are computed at a time."""
LOSS_SCALE = 1024.0
"""Factor of gradients in the backward pass, divided out afterwards, since float16 would round the gradients of long
documents to 0. A power of two, so no digit changes."""
WORD_BITS, ROW_WORDS = 64, 1 << 20
"""Words of the hash for each entry of a parameter: enough for a K of 67 million."""


def load(
    directory: Path | str,
    spec: EmbeddingSpec,
    *,
    layers: int,
    dims: int,
    seed: int,
    vocabulary: int = 0,
) -> GradientModel:
    """The model of a checkpoint, ready to compute gradients of the last `layers` blocks, or of all if there are fewer.
    vocabulary: one more than the largest token id.

    Raises:
        InputError: as `deep.load`; it is not a causal language model, or has no list of blocks.
    """
    import torch

    directory = Path(directory)
    try:
        module = load_module(directory, "AutoModelForCausalLM", spec.device, spec.dtype)
    except InputError as error:
        raise InputError(
            f"{error}, or set deep.model to a causal language model with its output layer"
        ) from error
    check_vocabulary(directory, len(module.get_input_embeddings().weight), vocabulary)
    count = getattr(module.config.get_text_config(), "num_hidden_layers", 0)
    lists = [each for each in module.base_model.modules() if isinstance(each, torch.nn.ModuleList)]
    blocks = next((list(blocks) for blocks in lists if len(blocks) == count), [])
    inside = {id(each) for block in blocks[-layers:] for each in block.parameters()}
    # Experts are stacked.
    parameters = {
        name: each for name, each in module.named_parameters() if id(each) in inside and each.ndim <= 2
    }
    named = f"{directory} ({type(module).__name__})"
    if not parameters:
        raise InputError(f"{named} has no list of blocks; set deep.model to another model")
    model = GradientModel(module, spec, parameters, dims=dims, seed=seed)
    with quiet():
        if sees_ahead(model, module.base_model):
            raise InputError(
                f"{named} is not a causal language model: a token sees later ones; set deep.model to a causal "
                "language model"
            )
    return model


class GradientModel(Embedder):
    """A loaded model; a call gives the projected gradients of a batch of windows. parameters: by name, those whose
    gradients are taken."""

    relief = "or set deep.model to a smaller one"

    def __init__(
        self,
        module: Any,
        spec: EmbeddingSpec,
        parameters: dict[str, torch.nn.Parameter],
        *,
        dims: int,
        seed: int,
    ) -> None:
        super().__init__(module.requires_grad_(False), spec)
        for each in parameters.values():
            each.requires_grad_()
        self.parameters, self.dims, self.seed = parameters, dims, seed
        room = MODEL_BYTES if spec.device == "cpu" else BUFFER_BYTES
        self.rows = max(1, min(ROWS, room // (4 * sum(each.numel() for each in parameters.values()))))
        self.budget = self.rows * spec.window

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> torch.Tensor:
        """Projected gradients float32 (B, K), on the model's device; zero for a window without a next token, NaN for a
        loss that is not finite. ids: int64 (B, L), padded on the right; lengths: int64 (B,), number of ids in each row
        without padding."""
        import torch

        projected = torch.zeros(len(ids), self.dims, device=self.device)
        step = max(1, TILE[self.device.type] // self.dims)
        for first in range(0, len(ids), self.rows):
            rows = slice(first, first + self.rows)
            for name, gradient in self.gradients(ids[rows], lengths[rows]).items():
                for begin in range(0, gradient.shape[1], step):
                    part = gradient[:, begin : begin + step]
                    entries = range(begin, begin + part.shape[1])
                    projected[rows].addmm_(part, signs(self.seed, name, entries, self.dims, self.device))
        return projected / math.sqrt(self.dims)

    def gradients(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """Gradients float32 (B, size), by the name of the parameter, of transformers' own loss of each window alone;
        NaN if the loss is not finite."""
        import torch

        parameters = self.parameters.items()
        gradients = {
            name: torch.zeros(len(ids), each.numel(), device=self.device) for name, each in parameters
        }
        for row, length in enumerate(lengths.tolist()):
            if length < 2:
                continue
            tokens = torch.from_numpy(ids[row : row + 1, :length]).to(self.device)
            loss = self.module(input_ids=tokens, labels=tokens).loss
            found = torch.autograd.grad(
                LOSS_SCALE * loss, [each for _, each in parameters], allow_unused=True
            )
            # The slope of an infinite loss may be finite.
            scale = 1 / LOSS_SCALE if loss.isfinite() else torch.nan
            for name, gradient in zip(gradients, found, strict=True):
                if gradient is not None:
                    gradients[name][row] = gradient.float().ravel() * scale
        return gradients


def signs(seed: int, name: str, entries: range, dims: int, device: Any = "cpu") -> torch.Tensor:
    """The columns of R for some entries of a parameter, transposed: +1 or -1, float32 (entries, K)."""
    import torch
    from xxhash import xxh3_64_intdigest

    words = -(-dims // WORD_BITS)
    key = xxh3_64_intdigest(name.encode(), seed=xxh3_64_intdigest(seed.to_bytes(8, "little")))
    at = torch.arange(entries.start, entries.stop, device=device)[:, None] * ROW_WORDS
    at = at + torch.arange(1, words + 1, device=device)
    hashed = _mix(at * _signed(GOLDEN) + _signed(key))
    # The hash gives the first bit of each float, its sign; the other bits are those of 1.0.
    shifts = torch.arange(32, device=device, dtype=torch.int32)
    bits = hashed.view(torch.int32)[:, :, None] << shifts
    bits &= -(1 << 31)
    bits |= 0x3F800000
    return bits.view(torch.float32).view(len(at), -1)[:, :dims]


GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser of int64, whose products wrap. The masks make its shifts unsigned."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _signed(word: int) -> int:
    """An unsigned word of 64 bits as torch's int64."""
    return word - (1 << 64) if word >> 63 else word
