"""The forward pass of a Hugging Face model: batches of token ids in, pooled hidden states out.

Letters: B windows of a batch, L tokens of the longest, D dims.
Guarantee: vectors are what transformers and sentence-transformers compute for the same tokens, within rounding. Only
safetensors are read and no code of a model runs (`trust_remote_code` stays off); a checkpoint that lacks weights which
hidden states depend on is refused, not filled at random.
Cost: weights in the checkpoint's own dtype stay mapped files on a CPU.
Source: transformers (AutoModel; sdpa attention where a model has it).
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
from dagster_divorder.models import onednn
from dagster_divorder.models.memory import is_out_of_memory
from dagster_divorder.models.reading import Pooling, Reading, first_line, load_config, quiet, unusable

if TYPE_CHECKING:
    import torch


class Model:
    """A loaded model: called with a batch of windows, gives their pooled vectors.

    `dims` D; `sharded`: this process is one of several that compute together; `masked`: the model has to be told what
    is padding. A causal one has not, since no token sees what comes after it, and is faster without: attention then
    has no matrix of L x L to read, and leaves out half of the products.
    """

    def __init__(self, module: torch.nn.Module, reading: Reading, *, sharded: bool = False) -> None:
        self.module: Any = module
        self.reading = reading
        self.sharded = sharded
        self.device = next(module.parameters()).device
        self.dims = 0
        self.masked = True

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> torch.Tensor:
        """Vectors float32 (B, D), on the model's device, of right-padded `ids` int64 (B, L) of which `lengths` are
        real."""
        import torch

        with torch.inference_mode():
            tokens = torch.from_numpy(ids).to(self.device, non_blocking=True)
            real = torch.from_numpy(lengths).to(self.device, non_blocking=True)
            mask = torch.arange(ids.shape[1], device=self.device) < real[:, None]
            told = {"attention_mask": mask.long()} if self.masked else {}
            hidden = self.module(input_ids=tokens, **told).last_hidden_state
            vectors = pool(
                hidden, mask, real, self.reading.pooling, padded=bool(lengths.min() < ids.shape[1])
            )
            if self.sharded:
                # Every process decides alike what to do with them.
                torch.distributed.broadcast(vectors, 0)
            return vectors

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """The model in float32 meanwhile, beside its own weights, which come back untouched."""
        import torch

        narrow = [
            (tensors, name, tensor)
            for module in self.module.modules()
            for tensors in (module._parameters, module._buffers)
            for name, tensor in tensors.items()
            if tensor is not None and tensor.dtype in (torch.float16, torch.bfloat16)
        ]
        try:
            for tensors, name, tensor in narrow:
                wide = tensor.detach().float()
                is_weight = isinstance(tensor, torch.nn.Parameter)
                tensors[name] = torch.nn.Parameter(wide, requires_grad=False) if is_weight else wide
            yield
        finally:
            for tensors, name, tensor in narrow:
                tensors[name] = tensor


def pool(
    hidden: torch.Tensor, mask: torch.Tensor, real: torch.Tensor, pooling: Pooling, *, padded: bool = True
) -> torch.Tensor:
    """Hidden states (B, L, D) to vectors float32 (B, D): mean over the `real` (B,) tokens that `mask` bool (B, L)
    shows, the last of them, or the first."""
    import torch

    if pooling == "cls":
        return hidden[:, 0].float()
    if pooling == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), real - 1].float()
    if padded:  # masked, not multiplied: nothing times zero is NaN where it is infinite
        hidden = hidden.masked_fill(~mask[:, :, None], 0)
    return hidden.sum(1, dtype=torch.float32) / real[:, None]


def load(directory: Path | str, reading: Reading, *, vocabulary: int = 0, processes: int = 1) -> Model:
    """The model of a checkpoint on `reading.device`, ready for a forward pass; `vocabulary` is one more than the
    largest token id, `processes` the number of those that share it (then called in each of them).

    Raises:
        InputError: transformers has no such architecture or cannot build it from these weights; weights are missing;
            it has too few rows for the tokenizer, does not fit into memory, or gives no hidden states of tokens.
    """
    import torch
    from transformers import AutoModel

    directory = Path(directory)
    config = load_config(directory)
    for part in (config, config.get_text_config()):
        part.use_cache = False
    options: dict[str, Any] = {}
    if processes > 1:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=processes)
    with quiet():
        try:
            module, report = AutoModel.from_pretrained(
                directory,
                config=config,
                dtype=getattr(torch, reading.dtype),
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
            used = module.get_encoder() if config.is_encoder_decoder else module
            _refuse_missing(directory, module, used, report)
            if processes == 1:
                used = used.to(reading.device)
                if reading.device == "cpu" and onednn.helps():
                    onednn.use_onednn(used)
        except InputError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise InputError(
                    f"{directory} does not fit into the memory of {reading.device} in {reading.dtype}; spread it over "
                    "several GPUs with deep.tensor_parallel, or set deep.dtype to a smaller one"
                ) from error
            raise unusable(directory, error) from error
        model = Model(used.eval(), reading, sharded=processes > 1)
        _try(directory, model)
        rows = len(used.get_input_embeddings().weight)
        if vocabulary > rows:
            raise InputError(
                f"the tokenizer of {directory} has ids up to {vocabulary - 1:,} and its embedding only {rows:,} rows; "
                "use the tokenizer and the weights of one model"
            )
    return model


def _try(directory: Path, model: Model) -> None:
    """One forward pass of two short windows, for its shape; and whether tokens see what comes after them."""
    reading = model.reading
    lengths = np.array([min(reading.room, 3), 1]) + len(reading.prefix) + len(reading.suffix)
    ids = np.full((2, lengths[0]), reading.pad, dtype=np.int64)
    for row, length in enumerate(lengths):
        middle = [1] * (length - len(reading.prefix) - len(reading.suffix))
        ids[row, :length] = [*reading.prefix, *middle, *reading.suffix]
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
    model.masked = _sees_ahead(model)


def _sees_ahead(model: Model) -> bool:
    """Whether the hidden state of a token depends on later ones: two texts that part after their beginning tell."""
    import torch

    length = min(model.reading.window, 16)
    texts = [[1, 2, *[other] * (length - 2)] for other in (3, 4)]
    with torch.inference_mode():
        one, two = (
            model.module(input_ids=torch.tensor([text], device=model.device)).last_hidden_state[0, :2]
            for text in texts
        )
        # Of one shape, so that a causal model rounds both alike.
        differs = ~((one - two).abs().max() <= 1e-5 * one.abs().max())
        if model.sharded:
            torch.distributed.broadcast(differs, 0)
    return bool(differs)


def _refuse_missing(directory: Path, module: Any, used: Any, report: dict[str, Any]) -> None:
    """Raise where weights that hidden states depend on are not in the checkpoint: they would be random."""
    needed = {id(parameter) for parameter in used.parameters()}
    names = {name for name, parameter in module.named_parameters() if id(parameter) in needed}
    lacking = sorted(
        name for name in report["missing_keys"] if name in names and "pooler" not in name.split(".")
    )
    lacking += sorted(str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"])
    if lacking:
        raise InputError(
            f"{directory} lacks {len(lacking)} of {len(names)} weights of {type(module).__name__} (or has them in "
            f"another shape): {', '.join(lacking[:3])}; fetch or save the model again"
        )
