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

from dagster_divorder.engine.memory import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.batches import CPU_BUDGET, position_bytes
from dagster_divorder.models.spec import EmbeddingSpec, Pooling, first_line, load_config, quiet, unusable

if TYPE_CHECKING:
    import torch


class Model:
    """A loaded model: called with a batch of windows, gives their pooled vectors.

    `dims` D; `sharded`: this process is one of several that compute together; `masked`: the model has to be told what
    is padding. A causal one has not, since no token sees what comes after it, and is faster without: attention then
    has no matrix of L x L to read, and leaves out half of the products.

    On a CPU a batch has `cpu_budget` positions; a position takes about `position_bytes` at the peak of a pass; `relief`
    is what helps where memory is short.
    """

    relief = "spread the model over several GPUs with deep.tensor_parallel"

    def __init__(self, module: Any, spec: EmbeddingSpec, *, sharded: bool = False) -> None:
        import torch

        self.module = module
        self.spec = spec
        self.sharded = sharded
        self.device = next(module.parameters()).device
        self.dims = 0
        self.masked = True
        self.cpu_budget = CPU_BUDGET
        self.position_bytes = position_bytes(
            module.config.get_text_config(), torch.finfo(getattr(torch, spec.dtype)).bits // 8
        )

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> torch.Tensor:
        """Vectors float32 (B, D), on the model's device, of right-padded `ids` int64 (B, L) of which `lengths` are
        real."""
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


def _pool(
    hidden: torch.Tensor, mask: torch.Tensor | None, real: torch.Tensor, pooling: Pooling
) -> torch.Tensor:
    """Hidden states (B, L, D) to vectors float32 (B, D): mean over the `real` (B,) tokens that `mask` bool (B, L)
    shows (None: all), the last of them, or the first."""
    import torch

    if pooling == "cls":
        return hidden[:, 0].float()
    if pooling == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), real - 1].float()
    if mask is not None:  # masked, not multiplied: nothing times zero is NaN where it is infinite
        hidden = hidden.masked_fill(~mask[:, :, None], 0)
    return hidden.sum(1, dtype=torch.float32) / real[:, None]


def load(directory: Path | str, spec: EmbeddingSpec, *, vocabulary: int = 0, processes: int = 1) -> Model:
    """The model of a checkpoint on `spec.device`, ready for a forward pass; `vocabulary` is one more than the
    largest token id, `processes` the number of those that share it (then called in each of them).

    Raises:
        InputError: as `load_module` does; it has too few rows for the tokenizer, or gives no hidden states of tokens.
    """
    directory = Path(directory)
    module = load_module(directory, spec, "AutoModel", processes=processes)
    model = Model(module, spec, sharded=processes > 1)
    with quiet():
        if processes == 1 and spec.device == "cpu" and onednn_helps():
            _use_onednn(module)
        _try(directory, model)
    check_vocabulary(directory, module, vocabulary)
    return model


def load_module(directory: Path, spec: EmbeddingSpec, kind: str, *, processes: int = 1) -> Any:
    """The module of a checkpoint that a class of transformers (`kind`) makes, of its encoder where it has a decoder
    too, on `spec.device`; `processes` as in `load`.

    Raises:
        InputError: transformers has no such architecture or cannot build it from these weights; weights are missing;
            it does not fit into memory.
    """
    import torch

    config = load_config(directory)
    for part in (config, config.get_text_config()):
        part.use_cache = False
    options: dict[str, Any] = {"config": config, "dtype": getattr(torch, spec.dtype)}
    if processes > 1:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=processes)
    with explaining(
        directory,
        f"{spec.device} in {spec.dtype}",
        "spread it over several GPUs with deep.tensor_parallel, or set deep.dtype to a smaller one",
    ):
        module, report = read_checkpoint(directory, kind, **options)
        used = module.get_encoder() if config.is_encoder_decoder else module
        _refuse_missing(directory, module, used, report)
        if processes == 1:
            used = used.to(spec.device)
    return used.eval()


@contextmanager
def explaining(directory: Path, place: str, relief: str) -> Iterator[None]:
    """Errors of a checkpoint that is loaded and moved to a place meanwhile, as people need them; `relief` is what
    helps where memory is short.

    Raises:
        InputError: transformers cannot build it; it does not fit into memory.
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
    """(the module of a checkpoint that a class of transformers (`kind`) makes; what it says of missing weights)."""
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


def check_vocabulary(directory: Path, module: Any, vocabulary: int) -> None:
    """InputError where `vocabulary`, one more than the largest token id, is more than a module has rows for."""
    rows = len(module.get_input_embeddings().weight)
    if vocabulary > rows:
        raise InputError(
            f"the tokenizer of {directory} has ids up to {vocabulary - 1:,} and its embedding only {rows:,} rows; "
            "use the tokenizer and the weights of one model"
        )


def _try(directory: Path, model: Model) -> None:
    """One forward pass of two short windows, for its shape; and whether tokens see what comes after them."""
    spec = model.spec
    middles = ([1] * min(spec.room, 3), [1])
    rows = [[*spec.prefix, *middle, *spec.suffix] for middle in middles]
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
    """Whether the hidden state of a token, as a module of the model has it, depends on later ones: two texts that part
    after their beginning tell."""
    import torch

    length = min(model.spec.window, 16)
    texts = [[1, 2, *[other] * (length - 2)] for other in (3, 4)]
    with torch.inference_mode():
        one, two = (
            module(input_ids=torch.tensor([text], device=model.device)).last_hidden_state[0, :2]
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


def onednn_helps() -> bool:
    """Whether float32 linear layers are faster with oneDNN's matrix products than with MKL's, which torch takes on x86.

    MKL keeps its fast kernels to Intel's processors: on an EPYC with AVX-512 it reached 95 GFLOP/s a core where oneDNN,
    which torch ships too, reached 200 (docs/decisions). The operator is the one that torch's own compiler uses, no part
    of its documented interface; a model stays as it is where a torch lacks it.
    """
    import torch

    try:
        amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        amd = False
    there = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return amd and there and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _use_onednn(module: torch.nn.Module) -> None:
    """Let every float32 linear layer of a module, on a CPU, multiply with oneDNN, which rounds last bits otherwise."""
    import torch

    class Linear(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")

    for layer in module.modules():
        if type(layer) is torch.nn.Linear and layer.weight.dtype == torch.float32:
            layer.__class__ = Linear


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Operations of torch run on so many threads each meanwhile."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
