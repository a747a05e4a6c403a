"""What each document asks of a causal language model: the gradient of its loss, projected at random.

Letters: B windows of a batch, L tokens of the longest, D width, V vocabulary, P parameters, K dims.

    g = d/dw  mean_t -log p(x_t | x_1 ... x_t-1),    z = R g / sqrt(K)

w are the parameters of the last blocks; R, K x P, holds +1 and -1, each with probability 1/2, so that inner products of
z are those of g in expectation, with a variance of at most 2 / K for gradients of length 1. R is never held: a sign is
one bit of a hash of the seed, the parameter's name, the entry's place in it and the row, so it is the same whatever is
computed together, and wherever.

Blocks below run without gradient. Of the last ones no gradient of a whole batch is computed: hooks keep the input a and
the slope d of the output of each layer, and a linear layer's gradient of document i is sum_t d_it a_it^T, one product a
document and layer, as large as the sum over the batch that training would compute. Scales and shifts (norms) get
sum_t d_it * x_it, with x what the layer makes of its input where all scales are 1, less what it makes where all are 0.
Padding weighs nothing in the loss. Logits are made, and their slopes taken, for a few positions at a time.

Guarantee: per document what autograd gives for it alone, within rounding, checked on two windows whenever a model is
loaded. On a CPU the bytes depend neither on the number of threads that work side by side nor on that of workers.
Cost: that of a forward and backward pass, and 2 K P more for each document; the signs cost as much as some 60 documents
do, so documents are projected together. A batch keeps P float32 numbers a document.
Sources: Goodfellow 2015 (gradients of examples from those of a batch); Achlioptas 2003 (signs keep distances); Steele,
Lea and Flood 2014 (the hash, SplitMix64's finaliser); Jung et al. 2025 (gradients as what a document teaches).
Known weakness: experts of a mixture are left out, since they see tokens, not documents.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.engine.memory import main_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.batches import CPU_BUDGET, CPU_SHARE, batch_end
from dagster_divorder.models.deep import Model, check_vocabulary, load_module, sees_ahead
from dagster_divorder.models.spec import EmbeddingSpec, first_line, load_config, quiet, unusable

if TYPE_CHECKING:
    import torch

ROWS = 64
"""Documents that are projected together at most."""

BUFFER_BYTES = 8 << 30
"""Of gradients that wait to be projected, on a GPU at most; on a CPU they take CPU_SHARE of the memory."""

TILE = {"cpu": 1 << 20, "cuda": 1 << 26, "mps": 1 << 24}
"""Entries of R that are made at a time."""

LOGITS = {"cpu": 1 << 23, "cuda": 1 << 28, "mps": 1 << 26}
"""Entries of the logits that are made at a time."""

LOSS_SCALE = 1024.0
"""Gradients are multiplied by this in the backward pass and divided afterwards, since float16 would round those of long
documents to 0. A power of two, so no digit changes."""

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2, "float16": 0.05}
"""How far the gradient of a parameter may lie from autograd's when a model is loaded, in lengths of the whole."""

WORD_BITS = 64
ROW_WORDS = 1 << 20
"""Words of the hash that an entry of a parameter has to itself: for K of up to 67 million."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Of which parameters gradients are taken: `included` by name, with their sizes, in the order of the blocks;
    `left_out` likewise, of layers that are no linear maps, scales or shifts of single positions."""

    included: dict[str, int]
    left_out: dict[str, int]

    @property
    def parameters(self) -> int:
        return sum(self.included.values())


def describe(directory: Path | str, *, layers: int, dims: int, setting: str) -> Proxy:
    """What a checkpoint's architecture comes to, its weights unread; `setting` names what asks for the model.

    Raises:
        InputError: no causal language model, fewer blocks than `layers`, or fewer parameters in them than `dims`.
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
        have = "none that can be told" if blocks is None else f"{len(blocks)}"
        raise InputError(
            f"gradients.layers is {layers} and {directory} ({type(module).__name__}) has {have} blocks; expected as "
            "many at most: lower it"
        )
    proxy = last_blocks(module, layers)
    if proxy.parameters < dims:
        raise InputError(
            f"gradients.dims is {dims:,} and the last {layers} blocks of {directory} have {proxy.parameters:,} "
            f"parameters; expected {proxy.parameters:,} at most: lower it, or raise gradients.layers"
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
    """The model of a checkpoint, ready to give gradients; `vocabulary` is one more than the largest token id.

    Raises:
        InputError: as `describe` and `deep.load` do, or a token sees what comes after it; logits are not those of the
            output layer alone; the gradients of documents do not add up to those of a batch.
    """
    directory = Path(directory)
    proxy = describe(directory, layers=layers, dims=dims, setting=setting)
    try:
        module = load_module(directory, spec, "AutoModelForCausalLM")
    except InputError as error:
        raise InputError(
            f"{error}, or set gradients.model to a causal language model with its output layer"
        ) from error
    check_vocabulary(directory, module, vocabulary)
    model = GradientModel(module, spec, proxy, layers=layers, dims=dims, seed=seed)
    with quiet():
        if sees_ahead(model, model.body):
            raise _no_causal(directory, module.config, setting)
        _check(directory, model)
    return model


def _no_causal(directory: Path, config: Any, setting: str) -> InputError:
    return InputError(
        f"{setting} is {directory} ({type(config).__name__.removesuffix('Config')}), which is no causal language "
        "model: it has no probability of the next token; set gradients.model to one that has"
    )


def blocks_of(module: Any) -> Any:
    """The list of a model's blocks, None where it has none."""
    import torch

    count = getattr(module.config.get_text_config(), "num_hidden_layers", 0)
    lists = (part for part in module.base_model.modules() if isinstance(part, torch.nn.ModuleList))
    return next((part for part in lists if len(part) == count), None)


def last_blocks(module: Any, layers: int) -> Proxy:
    """The parameters of a model's last blocks, no more than it has."""
    blocks = blocks_of(module)
    names = {id(part): name for name, part in module.named_modules()}
    included: dict[str, int] = {}
    left_out: dict[str, int] = {}
    for block in blocks[len(blocks) - layers :]:
        for part in block.modules():
            own = dict(part.named_parameters(recurse=False))
            scales = not any(part.children()) and all(each.ndim == 1 for each in own.values())
            chosen = included if _is_linear(part) or scales else left_out
            chosen |= {f"{names[id(part)]}.{name}": each.numel() for name, each in own.items()}
    return Proxy(included, left_out)


def _is_linear(part: Any) -> bool:
    import torch
    from transformers.pytorch_utils import Conv1D

    return isinstance(part, torch.nn.Linear | Conv1D)


class GradientModel(Model):
    """A loaded model: called with a batch of windows, gives their projected gradients."""

    relief = "lower gradients.layers"

    def __init__(
        self, module: Any, spec: EmbeddingSpec, proxy: Proxy, *, layers: int, dims: int, seed: int
    ) -> None:
        super().__init__(module.requires_grad_(False), spec)
        self.proxy, self.dims, self.seed = proxy, dims, seed
        self.masked = False
        self.body, self.head = module.base_model, module.get_output_embeddings()
        self._here = threading.local()
        """`taken` by the thread: where the hooks put the gradients of its pass; none while it has no pass."""
        size = 4 * proxy.parameters
        room = CPU_SHARE * main_memory() if spec.device == "cpu" else BUFFER_BYTES
        self.rows = max(1, min(ROWS, int(room / size)))
        self.cpu_budget = self.rows * spec.window
        # What a pass keeps of its last blocks, and what waits to be projected.
        self.position_bytes = (layers + 1) * self.position_bytes + self.rows * size // max(
            CPU_BUDGET, spec.window
        )
        blocks = blocks_of(module)
        for block in blocks[len(blocks) - layers :]:
            for part in block.modules():
                if any(True for _ in part.parameters(recurse=False)):
                    self._watch(part)

    def _watch(self, part: Any) -> None:
        """Let a layer's own parameters be seen by the passes to come."""
        name = next(name for name, other in self.module.named_modules() if other is part)
        names = {own: f"{name}.{own}" for own, _ in part.named_parameters(recurse=False)}
        if not set(names.values()) <= set(self.proxy.included):
            return
        gradients = _of_linear(part, names) if _is_linear(part) else _of_scales(part, names)

        def seen(part: Any, given: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            taken: _Taken | None = getattr(self._here, "taken", None)
            if taken is None:
                return output
            if not output.requires_grad:  # what lies below has no gradient: it begins here
                output = output.detach().requires_grad_()
            entered = given[0].detach()
            output.register_hook(lambda slope: gradients(taken, entered, slope))
            return output

        part.register_forward_hook(seen)

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> torch.Tensor:
        """Projected gradients float32 (B, K), on the model's device, of right-padded `ids` int64 (B, L) of which
        `lengths`, longest first, are real; zero where a window has no next token, NaN where the loss is not finite."""
        import torch

        found = torch.zeros(len(ids), self.dims, device=self.device)
        for first in range(0, len(ids), self.rows):
            rows = slice(first, first + self.rows)
            gradients = self.gradients(ids[rows], lengths[rows])
            for name, gradient in gradients.items():
                project(gradient, found[rows], seed=self.seed, name=name)
        return found / math.sqrt(self.dims)

    def gradients(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """Gradients float32 (B, size) by the name of the parameter."""
        import torch

        sizes = self.proxy.included.items()
        made = {name: torch.zeros(len(ids), size, device=self.device) for name, size in sizes}
        begin = 0
        while begin < len(ids):
            on_cpu = self.spec.device == "cpu"
            end = batch_end(lengths, begin, CPU_BUDGET) if on_cpu else len(ids)
            part = {name: gradient[begin:end] for name, gradient in made.items()}
            longest = int(lengths[begin:end].max())
            lost = self._pass(ids[begin:end, :longest], lengths[begin:end], part)
            for gradient in part.values():
                gradient /= LOSS_SCALE
                gradient.masked_fill_(lost[:, None], torch.nan)
            begin = end
        return made

    def _pass(
        self, ids: NDArray[np.int64], lengths: NDArray[np.int64], gradients: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """One forward and backward pass, that adds to `gradients`, LOSS_SCALE times as large; bool (B,), whether a loss
        is not finite."""
        import torch

        tokens = torch.from_numpy(ids).to(self.device)
        real = torch.from_numpy(lengths).to(self.device)
        self._here.taken = _Taken(gradients, len(ids))
        try:
            with torch.enable_grad():
                hidden = self.body(input_ids=tokens).last_hidden_state
        finally:
            del self._here.taken
        with torch.no_grad():
            losses, slopes = self._loss(hidden.detach(), tokens, real)
        hidden.backward(slopes)
        return ~losses.isfinite()

    def _loss(
        self, hidden: torch.Tensor, tokens: torch.Tensor, real: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean loss of each window, float32 (B,), and LOSS_SCALE times its slope with respect to `hidden` (B, L,
        D)."""
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
class _Taken:
    """Where a pass of so many `windows` puts gradients, float32 (windows, size) by name."""

    gradients: dict[str, torch.Tensor]
    windows: int

    def by_window(self, given: torch.Tensor) -> torch.Tensor:
        """A layer's input or slope as (B, positions, width): some layers see all tokens of a batch as one row."""
        return given.reshape(self.windows, -1, given.shape[-1])


Add: TypeAlias = "Callable[[_Taken, torch.Tensor, torch.Tensor], None]"
"""Adds the gradients that a layer's input and slope come to."""


def _of_linear(part: Any, names: dict[str, str]) -> Add:
    """Of y = W x + b, or x W + b where a layer keeps its weight the other way round (Conv1D)."""
    import torch

    shape, upright = part.weight.shape, isinstance(part, torch.nn.Linear)

    def add(taken: _Taken, entered: torch.Tensor, slope: torch.Tensor) -> None:
        entered, slope = taken.by_window(entered), taken.by_window(slope)
        left, right = (slope, entered) if upright else (entered, slope)
        made = taken.gradients[names["weight"]].view(-1, *shape)
        if made.dtype == left.dtype:
            made.baddbmm_(left.transpose(1, 2), right)
        else:
            made += left.transpose(1, 2) @ right
        if "bias" in names:
            taken.gradients[names["bias"]] += slope.sum(1, dtype=torch.float32)

    return add


def _of_scales(part: Any, names: dict[str, str]) -> Add:
    """Of y = w * x + b, where x is what the layer makes of its input whatever its parameters."""
    import torch

    def with_scales(of: float) -> Any:
        made = copy.deepcopy(part)
        for name, each in made.named_parameters():
            each.fill_(0.0 if name == "bias" else of)
        return made

    ones, zeros = with_scales(1.0), with_scales(0.0)

    def add(taken: _Taken, entered: torch.Tensor, slope: torch.Tensor) -> None:
        flat = taken.by_window(slope)
        for name, full in names.items():
            if name == "bias":
                taken.gradients[full] += flat.sum(1, dtype=torch.float32)
            else:
                with torch.no_grad():
                    scaled = ones.to(entered.dtype)(entered) - zeros.to(entered.dtype)(entered)
                taken.gradients[full] += (flat * taken.by_window(scaled)).sum(1, dtype=torch.float32)

    return add


def _check(directory: Path, model: GradientModel) -> None:
    """Hold the gradients of two short windows against autograd's for each alone."""
    import torch

    length = min(model.spec.window, 8)
    ids = np.arange(2 * length).reshape(2, length) % 3 + 1
    lengths = np.array([length, max(1, length - 2)])
    names, off = model.proxy.included, set[str]()
    try:
        found = model.gradients(ids, lengths)
        for row, real in enumerate(lengths.tolist()):
            tokens = torch.from_numpy(ids[row : row + 1, :real]).to(model.device)
            expected = autograd(model.module, tokens, list(names)) if real > 1 else {}
            size = math.sqrt(sum(float(each.square().sum()) for each in expected.values()))
            for name, each in expected.items():
                if not float((found[name][row] - each).norm()) <= TOLERANCE[model.spec.dtype] * size:
                    off.add(name)
    except Exception as error:
        raise InputError(
            f"{directory} ({type(model.module).__name__}) gives no gradients of documents ({type(error).__name__}: "
            f"{first_line(error)}); set gradients.model to another causal language model"
        ) from error
    if off:
        raise InputError(
            f"the gradients of documents of {directory} ({type(model.module).__name__}) are not those of autograd for "
            f"{len(off)} of {len(names)} parameters ({', '.join(sorted(off)[:3])}): its weights are damaged, its "
            "logits are scaled or its blocks mix documents; set gradients.model to another causal language model"
        )


def autograd(module: Any, tokens: torch.Tensor, names: list[str]) -> dict[str, torch.Tensor]:
    """Gradients float32 (size,) of the loss of one window, (1, L), as transformers has it."""
    import torch

    parameters = dict(module.named_parameters())
    chosen = [parameters[name] for name in names]
    try:
        for each in chosen:
            each.requires_grad_()
        with torch.enable_grad():
            loss = module(input_ids=tokens, labels=tokens).loss
        found = torch.autograd.grad(loss, chosen, allow_unused=True)
    finally:
        module.requires_grad_(False)
    return {
        name: (torch.zeros_like(each) if made is None else made).float().ravel()
        for name, each, made in zip(names, chosen, found, strict=True)
    }


def project(gradient: torch.Tensor, found: torch.Tensor, *, seed: int, name: str) -> None:
    """Add R g to `found` (B, K), of the gradients (B, size) of the parameter of a name."""
    size, dims = gradient.shape[1], found.shape[1]
    step = max(1, TILE[gradient.device.type] // dims)
    for first in range(0, size, step):
        entries = range(first, min(first + step, size))
        found.addmm_(
            gradient[:, entries.start : entries.stop], signs(seed, name, entries, dims, gradient.device)
        )


def signs(seed: int, name: str, entries: range, dims: int, device: Any = "cpu") -> torch.Tensor:
    """R of some entries of a parameter, transposed: +1 or -1, float32 (entries, K)."""
    import torch
    from xxhash import xxh3_64_intdigest

    words = -(-dims // WORD_BITS)
    key = xxh3_64_intdigest(name.encode(), seed=xxh3_64_intdigest(seed.to_bytes(8, "little")))
    at = torch.arange(entries.start, entries.stop, device=device)[:, None] * ROW_WORDS
    at = at + torch.arange(1, words + 1, device=device)
    hashed = _mix(at * _signed(GOLDEN) + _signed(key))
    # A sign is the first bit of a float, and the rest of it is the number 1.
    shifts = torch.arange(32, device=device, dtype=torch.int32)
    bits = hashed.view(torch.int32)[:, :, None] << shifts
    bits &= -(1 << 31)
    bits |= 0x3F800000
    return bits.view(torch.float32).view(len(at), -1)[:, :dims]


GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser of int64, whose products wrap; shifts are made those of numbers without a sign."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _signed(word: int) -> int:
    """A word of 64 bits as torch's integers have it."""
    return word - (1 << 64) if word >> 63 else word
