"""The forward pass of a Hugging Face model: batches of token ids in, pooled hidden states out.

Letters: B windows of a batch, L tokens of the longest, D dims.
Guarantee: vectors are what transformers and sentence-transformers compute for the same tokens, within rounding. Only
safetensors are read and no code of a model runs (`trust_remote_code` stays off). A checkpoint that lacks weights is
refused if hidden states depend on them; no weight is filled at random.
Cost: on a CPU, weights in the checkpoint's own dtype stay mapped files.
Source: transformers (AutoModel; sdpa attention if a model has it).
Known weakness: padding and batch mates change the last bits of a vector: 1e-6 in float32, 1e-2 in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.engine.memory import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import check_vocabulary, first_line
from dagster_divorder.models.spec import EmbeddingSpec, Pooling, load_config, quiet, unusable

if TYPE_CHECKING:
    import torch


class Model:
    """A loaded model: called with a batch of windows, gives their pooled vectors.

    dims: D. sharded: this process is one of several that compute together. masked: the model needs a mask of the
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
        self.masked = True
        self.budget: int | None = None

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> torch.Tensor:
        """Vectors float32 (B, D), on the model's device. ids: int64 (B, L), padded on the right; lengths: int64 (B,),
        number of ids in each row without padding."""
        import torch

        with torch.inference_mode():
            tokens = torch.from_numpy(ids).to(self.device, non_blocking=True)
            real = torch.from_numpy(lengths).to(self.device, non_blocking=True)
            mask = torch.arange(ids.shape[1], device=self.device) < real[:, None]
            attention = {"attention_mask": mask.long()} if self.masked else {}
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
    module = load_module(directory, spec, "AutoModel", processes=processes)
    model = Model(module, spec, sharded=processes > 1)
    with quiet():
        _probe(directory, model)
    check_vocabulary(directory, len(module.get_input_embeddings().weight), vocabulary)
    return model


def load_module(directory: Path, spec: EmbeddingSpec, kind: str, *, processes: int = 1) -> Any:
    """A checkpoint's module, of a class of transformers (`kind`), on `spec.device`; of an encoder-decoder model only
    the encoder. processes: as in `load`.

    Raises:
        InputError: as `explaining`; weights are missing.
    """
    import torch

    config = load_config(directory)
    for level in (config, config.get_text_config()):
        level.use_cache = False
    options: dict[str, Any] = {"config": config, "dtype": getattr(torch, spec.dtype)}
    if processes > 1:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=processes)
    with explaining(
        directory,
        f"{spec.device} in {spec.dtype}",
        "spread it over several GPUs with deep.tensor_parallel, or set deep.model to a smaller one",
    ):
        module, report = read_checkpoint(directory, kind, **options)
        used = module.get_encoder() if config.is_encoder_decoder else module
        _refuse_missing(directory, module, used, report)
        return used.eval() if processes > 1 else used.eval().to(spec.device)


@contextmanager
def explaining(directory: Path, place: str, relief: str) -> Iterator[None]:
    """Makes errors of loading a checkpoint readable, and silences transformers. place: the device, for messages.
    relief: what to do when memory is short.

    Raises:
        InputError: transformers has no such architecture or cannot build it from these weights; it does not fit into
            memory.
    """
    with quiet():
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise InputError(f"{directory} does not fit into the memory of {place}; {relief}") from error
            raise unusable(directory, error) from error


def read_checkpoint(directory: Path, kind: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """(a checkpoint's module, of a class of transformers (`kind`); transformers' report of missing weights)."""
    import transformers

    module, report = getattr(transformers, kind).from_pretrained(
        directory,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        **options,
    )
    return module, report


def _probe(directory: Path, model: Model) -> None:
    """Sets the model's `dims` and `masked` by a forward pass of two short windows, and by `sees_ahead`."""
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
    model.masked = sees_ahead(model, model.module)


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


def _refuse_missing(directory: Path, module: Any, used: Any, report: dict[str, Any]) -> None:
    """Raises InputError if the checkpoint lacks weights that hidden states depend on; they would be random. used: the
    part of the module that computes hidden states."""
    needed = {id(parameter) for parameter in used.parameters()}
    names = {name for name, parameter in module.named_parameters() if id(parameter) in needed}
    lacking = sorted(
        name for name in report["missing_keys"] if name in names and "pooler" not in name.split(".")
    )
    lacking += sorted(str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"])
    if lacking:
        raise InputError(
            f"{directory} lacks {len(lacking)} of {len(names)} weights of {type(module).__name__} (or has them in "
            f"another shape): {', '.join(lacking[:3])}; download or save the model again"
        )


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
