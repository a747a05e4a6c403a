"""The gradient of each document's loss under a causal language model, projected at random.

Letters: B windows of a batch, L tokens of the longest, D width, V vocabulary, P parameters, K dims.

    g = d/dw  mean_t -log p(x_t | x_1 ... x_t-1),    z = R g / sqrt(K)

w are the parameters of the last blocks. R (K x P) holds +1 and -1, each with probability 1/2, so inner products of z
equal those of g in expectation, with a variance of at most 2 / K for gradients of length 1. R is never stored: a sign
is one bit of a hash of the seed, the parameter's name, the entry's place in it and the row. So a sign is the same on
every machine and for every division into batches.

Earlier blocks run without gradient. In the last blocks no gradient of a whole batch is computed: hooks keep the input a
and the slope d of the output of each layer. A linear layer's gradient of document i is sum_t d_it a_it^T: one product a
document and layer, as large as the sum over the batch in training. Scales and shifts (norms) get sum_t d_it * x_it,
where x is the layer's output with all scales 1 less its output with all scales 0. Padding has no weight in the loss.
Logits and their slopes are computed for a few positions at a time.

Guarantee: for each document the gradient of autograd for it alone, within rounding; checked on two windows whenever a
model is loaded. On a CPU neither the number of threads nor the number of workers changes the bytes.
Cost: a forward and backward pass, and 2 K P more for each document. The signs cost as much as some 60 documents, so
documents are projected together. A batch keeps P float32 numbers a document.
Sources: Goodfellow 2015 (gradients of examples from those of a batch); Achlioptas 2003 (signs keep distances); Steele,
Lea and Flood 2014 (the hash, SplitMix64's finaliser); Jung et al. 2025 (gradients describe what a document teaches).
Known weakness: the experts of a mixture are left out, since they see tokens, not documents.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.engine.memory import MODEL_BYTES
from dagster_divorder.errors import InputError
from dagster_divorder.models.batches import CPU_BUDGET, batch_end
from dagster_divorder.models.checkpoint import check_vocabulary, first_line
from dagster_divorder.models.deep import Model, load_module, sees_ahead
from dagster_divorder.models.spec import EmbeddingSpec, load_config, quiet, unusable

if TYPE_CHECKING:
    import torch

ROWS = 64
"""Most documents that are projected together."""

BUFFER_BYTES = 8 << 30
"""Most bytes of gradients that wait to be projected on a GPU; on a CPU they take MODEL_BYTES."""

TILE = {"cpu": 1 << 20, "cuda": 1 << 26, "mps": 1 << 24}
"""Entries of R that are computed at a time."""

LOGITS = {"cpu": 1 << 23, "cuda": 1 << 28, "mps": 1 << 26}
"""Entries of the logits that are computed at a time."""

LOSS_SCALE = 1024.0
"""Factor of gradients in the backward pass, divided out afterwards, since float16 would round the gradients of long
documents to 0. A power of two, so no digit changes."""

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2, "float16": 0.05}
"""Largest distance of a parameter's gradient from autograd's on loading a model, in lengths of the whole gradient."""

WORD_BITS = 64
ROW_WORDS = 1 << 20
"""Words of the hash for each entry of a parameter: enough for a K of 67 million."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Name -> size of parameters, in the order of the blocks. included: parameters whose gradients are taken. left_out:
    parameters of layers that are not linear maps, scales or shifts of single positions."""

    included: dict[str, int]
    left_out: dict[str, int]

    @property
    def parameters(self) -> int:
        return sum(self.included.values())


def describe(directory: Path | str, *, layers: int, dims: int, setting: str) -> Proxy:
    """The parameters of a checkpoint's last blocks, without reading its weights. setting: names the model.

    Raises:
        InputError: it is not a causal language model, or has fewer blocks than `layers`, or fewer parameters in them
            than `dims`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    directory = Path(directory)
    config = load_config(directory)
    with quiet(), torch.device("meta"):
        try:
            module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        except ValueError as error:
            raise _no_causal(directory, config, setting) from error
        except Exception as error:
            raise unusable(directory, error) from error
    blocks = blocks_of(module)
    if blocks is None or layers > len(blocks):
        have = "no list of" if blocks is None else f"{len(blocks)}"
        raise InputError(
            f"gradients.layers is {layers}, but {directory} ({type(module).__name__}) has {have} blocks; lower it, or "
            "set gradients.model to another model"
        )
    proxy = last_blocks(module, layers)
    if proxy.parameters < dims:
        raise InputError(
            f"gradients.dims is {dims:,}, but the last {layers} blocks of {directory} have {proxy.parameters:,} "
            f"parameters; expected at most {proxy.parameters:,}: lower it, or raise gradients.layers"
        )
    return proxy


def load(
    directory: Path | str,
    spec: EmbeddingSpec,
    *,
    layers: int,
    dims: int,
    seed: int,
    setting: str,
    vocabulary: int = 0,
) -> GradientModel:
    """The model of a checkpoint, ready to compute gradients. vocabulary: one more than the largest token id.

    Raises:
        InputError: as `describe` and `deep.load`; or a token sees later ones, the logits are not the output layer's, or
            blocks mix documents.
    """
    directory = Path(directory)
    proxy = describe(directory, layers=layers, dims=dims, setting=setting)
    try:
        module = load_module(directory, spec, "AutoModelForCausalLM")
    except InputError as error:
        raise InputError(
            f"{error}, or set gradients.model to a causal language model with its output layer"
        ) from error
    check_vocabulary(directory, len(module.get_input_embeddings().weight), vocabulary)
    model = GradientModel(module, spec, proxy, layers=layers, dims=dims, seed=seed)
    with quiet():
        if sees_ahead(model, model.body):
            raise _no_causal(directory, module.config, setting)
        _check(directory, model)
    return model


def _no_causal(directory: Path, config: Any, setting: str) -> InputError:
    return InputError(
        f"{setting} is {directory} ({type(config).__name__.removesuffix('Config')}), which is not a causal language "
        "model: it gives no probability of the next token; set gradients.model to a causal language model"
    )


def blocks_of(module: Any) -> Any:
    """The list of a model's blocks; None if it has none."""
    import torch

    count = getattr(module.config.get_text_config(), "num_hidden_layers", 0)
    lists = (each for each in module.base_model.modules() if isinstance(each, torch.nn.ModuleList))
    return next((blocks for blocks in lists if len(blocks) == count), None)


def last_blocks(module: Any, layers: int) -> Proxy:
    """The parameters of a model's last `layers` blocks."""
    included: dict[str, int] = {}
    left_out: dict[str, int] = {}
    for name, layer in _last_layers(module, layers):
        parameters = dict(layer.named_parameters(recurse=False))
        scales = not any(layer.children()) and all(each.ndim == 1 for each in parameters.values())
        sizes = included if _is_linear(layer) or scales else left_out
        sizes |= {f"{name}.{parameter}": each.numel() for parameter, each in parameters.items()}
    return Proxy(included, left_out)


def _last_layers(module: Any, layers: int) -> Iterator[tuple[str, Any]]:
    """(name, layer) of all layers with their own parameters in a model's last blocks."""
    blocks = blocks_of(module)
    names = {id(layer): name for name, layer in module.named_modules()}
    for block in blocks[len(blocks) - layers :]:
        for layer in block.modules():
            if any(True for _ in layer.parameters(recurse=False)):
                yield names[id(layer)], layer


def _is_linear(layer: Any) -> bool:
    import torch
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, torch.nn.Linear | Conv1D)


class GradientModel(Model):
    """A loaded model; a call gives the projected gradients of a batch of windows."""

    relief = "lower gradients.layers"

    def __init__(
        self, module: Any, spec: EmbeddingSpec, proxy: Proxy, *, layers: int, dims: int, seed: int
    ) -> None:
        super().__init__(module.requires_grad_(False), spec)
        self.proxy, self.dims, self.seed = proxy, dims, seed
        self.masked = False
        self.body, self.head = module.base_model, module.get_output_embeddings()
        self._running = threading.local()
        """Holds `pass_`, which collects the gradients of this thread's pass; absent while none runs."""
        size = 4 * proxy.parameters
        room = MODEL_BYTES if spec.device == "cpu" else BUFFER_BYTES
        self.rows = max(1, min(ROWS, int(room / size)))
        self.cpu_budget = self.rows * spec.window
        # What a pass keeps of the last blocks, and the gradients that wait to be projected.
        self.position_bytes = (layers + 1) * self.position_bytes + self.rows * size // max(
            CPU_BUDGET, spec.window
        )
        for name, layer in _last_layers(module, layers):
            self._watch(name, layer)

    def _watch(self, name: str, layer: Any) -> None:
        """Make later passes collect the gradients of a layer's own parameters, if they are included."""
        names = {own: f"{name}.{own}" for own, _ in layer.named_parameters(recurse=False)}
        if not set(names.values()) <= set(self.proxy.included):
            return
        add = _add_of_linear(layer, names) if _is_linear(layer) else _add_of_scales(layer, names)

        def watch(layer: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            pass_: _Pass | None = getattr(self._running, "pass_", None)
            if pass_ is None:
                return output
            if not output.requires_grad:  # layers below have no gradient: it begins here
                output = output.detach().requires_grad_()
            entered = inputs[0].detach()
            output.register_hook(lambda slope: add(pass_, entered, slope))
            return output

        layer.register_forward_hook(watch)

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> torch.Tensor:
        """Projected gradients float32 (B, K), on the model's device; zero for a window without a next token, NaN for a
        loss that is not finite. ids: int64 (B, L), padded on the right; lengths: int64 (B,), longest first, number of
        ids in each row without padding."""
        import torch

        projected = torch.zeros(len(ids), self.dims, device=self.device)
        for first in range(0, len(ids), self.rows):
            rows = slice(first, first + self.rows)
            for name, gradient in self.gradients(ids[rows], lengths[rows]).items():
                project(gradient, projected[rows], seed=self.seed, name=name)
        return projected / math.sqrt(self.dims)

    def gradients(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """Gradients float32 (B, size) by the name of the parameter."""
        import torch

        sizes = self.proxy.included.items()
        gradients = {name: torch.zeros(len(ids), size, device=self.device) for name, size in sizes}
        begin = 0
        while begin < len(ids):
            on_cpu = self.spec.device == "cpu"
            end = batch_end(lengths, begin, CPU_BUDGET) if on_cpu else len(ids)
            of_batch = {name: gradient[begin:end] for name, gradient in gradients.items()}
            longest = int(lengths[begin:end].max())
            lost = self._pass(ids[begin:end, :longest], lengths[begin:end], of_batch)
            for gradient in of_batch.values():
                gradient /= LOSS_SCALE
                gradient.masked_fill_(lost[:, None], torch.nan)
            begin = end
        return gradients

    def _pass(
        self, ids: NDArray[np.int64], lengths: NDArray[np.int64], gradients: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """A forward and backward pass, which adds LOSS_SCALE times the gradients to `gradients`. Returns bool (B,), the
        windows whose loss is not finite."""
        import torch

        tokens = torch.from_numpy(ids).to(self.device)
        real = torch.from_numpy(lengths).to(self.device)
        self._running.pass_ = _Pass(gradients, len(ids))
        try:
            with torch.enable_grad():
                hidden = self.body(input_ids=tokens).last_hidden_state
        finally:
            del self._running.pass_
        with torch.no_grad():
            losses, slopes = self._loss(hidden.detach(), tokens, real)
        hidden.backward(slopes)
        return ~losses.isfinite()

    def _loss(
        self, hidden: torch.Tensor, tokens: torch.Tensor, real: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(mean loss of each window, float32 (B,); LOSS_SCALE times its slope with respect to `hidden` (B, L, D))."""
        import torch
        from torch.nn.functional import linear

        next_is_real = torch.arange(1, tokens.shape[1], device=self.device) < real[:, None]
        window, at = next_is_real.nonzero(as_tuple=True)
        target, share = tokens[window, at + 1], 1 / (real - 1).clamp(min=1).float()
        losses, slopes = torch.zeros(len(tokens), device=self.device), torch.zeros_like(hidden)
        weight, bias = self.head.weight, self.head.bias
        step = max(1, LOGITS[self.spec.device] // len(weight))
        for first in range(0, len(at), step):
            rows = slice(first, first + step)
            logits = linear(hidden[window[rows], at[rows]], weight, bias).float()
            likely = logits.log_softmax(1)
            of_target = likely.gather(1, target[rows, None])[:, 0]
            losses.index_add_(0, window[rows], -of_target * share[window[rows]])
            likely.exp_()
            likely[torch.arange(len(likely), device=self.device), target[rows]] -= 1
            likely *= (LOSS_SCALE * share)[window[rows], None]
            slopes[window[rows], at[rows]] = likely.to(weight.dtype) @ weight
        return losses, slopes


@dataclass(frozen=True, slots=True)
class _Pass:
    """A pass over so many `windows`. gradients: what it adds up, float32 (windows, size), by name."""

    gradients: dict[str, torch.Tensor]
    windows: int

    def by_window(self, rows: torch.Tensor) -> torch.Tensor:
        """A layer's input or slope as (B, positions, width): some layers see all tokens of a batch as one row."""
        return rows.reshape(self.windows, -1, rows.shape[-1])


Add: TypeAlias = "Callable[[_Pass, torch.Tensor, torch.Tensor], None]"
"""Adds the gradients that follow from a layer's input and the slope of its output to a pass."""


def _add_of_linear(layer: Any, names: dict[str, str]) -> Add:
    """For y = W x + b, or x W + b for layers that store the weight transposed (Conv1D)."""
    import torch

    shape, upright = layer.weight.shape, isinstance(layer, torch.nn.Linear)

    def add(pass_: _Pass, entered: torch.Tensor, slope: torch.Tensor) -> None:
        entered, slope = pass_.by_window(entered), pass_.by_window(slope)
        left, right = (slope, entered) if upright else (entered, slope)
        gradient = pass_.gradients[names["weight"]].view(-1, *shape)
        if gradient.dtype == left.dtype:
            gradient.baddbmm_(left.transpose(1, 2), right)
        else:
            gradient += left.transpose(1, 2) @ right
        if "bias" in names:
            pass_.gradients[names["bias"]] += slope.sum(1, dtype=torch.float32)

    return add


def _add_of_scales(layer: Any, names: dict[str, str]) -> Add:
    """For y = w * x + b, where x depends on the layer's input alone."""
    import torch

    def with_scales(scale: float) -> Any:
        scaled = copy.deepcopy(layer)
        for name, each in scaled.named_parameters():
            each.fill_(0.0 if name == "bias" else scale)
        return scaled

    ones, zeros = with_scales(1.0), with_scales(0.0)

    def add(pass_: _Pass, entered: torch.Tensor, slope: torch.Tensor) -> None:
        slope = pass_.by_window(slope)
        for name, full in names.items():
            if name == "bias":
                pass_.gradients[full] += slope.sum(1, dtype=torch.float32)
            else:
                with torch.no_grad():
                    x = ones.to(entered.dtype)(entered) - zeros.to(entered.dtype)(entered)
                pass_.gradients[full] += (slope * pass_.by_window(x)).sum(1, dtype=torch.float32)

    return add


def _check(directory: Path, model: GradientModel) -> None:
    """Raises InputError if the gradients of two short windows differ from autograd's for each window alone."""
    import torch

    length = min(model.spec.window, 8)
    ids = np.arange(2 * length).reshape(2, length) % 3 + 1
    lengths = np.array([length, max(1, length - 2)])
    names, off = model.proxy.included, set[str]()
    try:
        gradients = model.gradients(ids, lengths)
        for row, real in enumerate(lengths.tolist()):
            tokens = torch.from_numpy(ids[row : row + 1, :real]).to(model.device)
            expected = autograd(model.module, tokens, list(names)) if real > 1 else {}
            size = math.sqrt(sum(float(each.square().sum()) for each in expected.values()))
            for name, each in expected.items():
                if not float((gradients[name][row] - each).norm()) <= TOLERANCE[model.spec.dtype] * size:
                    off.add(name)
    except Exception as error:
        raise InputError(
            f"{directory} ({type(model.module).__name__}) gives no gradients of documents ({type(error).__name__}: "
            f"{first_line(error)}); set gradients.model to another causal language model"
        ) from error
    if off:
        raise InputError(
            f"the gradients of documents of {directory} ({type(model.module).__name__}) differ from autograd's for "
            f"{len(off)} of {len(names)} parameters ({', '.join(sorted(off)[:3])}): its weights are damaged, its "
            "logits are scaled or its blocks mix documents; set gradients.model to another causal language model"
        )


def autograd(module: Any, tokens: torch.Tensor, names: list[str]) -> dict[str, torch.Tensor]:
    """Gradients float32 (size,), by name, of transformers' own loss of one window (1, L)."""
    import torch

    parameters = dict(module.named_parameters())
    chosen = [parameters[name] for name in names]
    try:
        for each in chosen:
            each.requires_grad_()
        with torch.enable_grad():
            loss = module(input_ids=tokens, labels=tokens).loss
        gradients = torch.autograd.grad(loss, chosen, allow_unused=True)
    finally:
        module.requires_grad_(False)
    return {
        name: (torch.zeros_like(each) if gradient is None else gradient).float().ravel()
        for name, each, gradient in zip(names, chosen, gradients, strict=True)
    }


def project(gradient: torch.Tensor, projected: torch.Tensor, *, seed: int, name: str) -> None:
    """Adds R g of a parameter to `projected` (B, K). gradient: (B, size), of the parameter `name`."""
    size, dims = gradient.shape[1], projected.shape[1]
    step = max(1, TILE[gradient.device.type] // dims)
    for first in range(0, size, step):
        entries = range(first, min(first + step, size))
        projected.addmm_(
            gradient[:, entries.start : entries.stop], signs(seed, name, entries, dims, gradient.device)
        )


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
