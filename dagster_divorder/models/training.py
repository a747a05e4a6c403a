"""Trains a small decoder on packed sequences in a given order, and measures the effects of the order.

Letters: B sequences a batch, L tokens a sequence, T steps of all epochs, E epochs, W weight matrices.

The decoder predicts the next token. Batches are consecutive in the order and never shuffled again. The gradient is
never clipped, because its norm is measured. AdamW (betas 0.9 and 0.95, weight decay 0.1); the learning rate rises over
WARM_UP of the steps and then follows a schedule (`rate`). Averages of weights are validated too: the plain average of
CHECKPOINTS over the last AVERAGED of the steps, and an exponential average of all steps.
Guarantee: the same sequences, order, seed and settings give the same numbers on one type of machine: one thread on a
CPU, deterministic kernels on a GPU; weights are drawn on the CPU, so that all devices begin alike.
Cost: 6 multiplications a token for each weight, and 2 % more for the other measures besides the loss; memory of two
more copies of the weights.
Sources: the epoch boundary, Diversity-Ordered Training; the stable rank of batch gradients, Don't Shuffle, Optimize;
validation loss by source and loss along the data, TokenShard (On Shuffling Tokens); the noise of the gradient,
McCandlish et al. 2018; `wsd`, MiniCPM (arXiv 2404.06395), with the decay of arXiv 2405.18392; a constant rate and
averaged checkpoints for curricula, How Learning Rate Decay Wastes Your Best Data (arXiv 2511.18903).
Known weakness: the rarest ids, beyond a preset's vocabulary, share the last quarter of it, so losses of presets do not
compare with those of other models.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.evidence.training_evidence import AVERAGES, RANKED_AT, Trained
from dagster_divorder.core.spans import Spans
from dagster_divorder.engine.memory import is_out_of_memory, main_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.deep import torch_threads
from dagster_divorder.models.spec import cpu_dtype, load_config, quiet, unusable
from dagster_divorder.units import byte_size

if TYPE_CHECKING:
    import torch

    from dagster_divorder.readers.export import Export

WARM_UP, LAST_RATE = 0.05, 0.1
DECAY = 0.2
"""Last part of the steps in which the rate of `wsd` falls."""
AVERAGED, CHECKPOINTS = 0.2, 8
"""The last part of the steps whose weights are averaged, and the number of evenly spaced steps in it."""
MEAN_AGE = 0.05
"""Mean age of the weights in the exponential average, as a share of the steps; AVERAGED then has 98 % of its weight."""
BETAS, WEIGHT_DECAY = (0.9, 0.95), 0.1
LOGITS = 1 << 25
"""Most scores of a micro-batch: 128 MB of float32, kept some three times."""
MASKED = 1 << 26
"""Most pairs of tokens in the masks of a micro-batch."""
BYTES_PER_WEIGHT = 16
"""Weight, gradient and AdamW's two moments, float32."""
RANKED_BATCHES = 4
"""Batches before each of RANKED_AT whose gradients are ranked."""
NOISY_BATCHES = 32
"""Most batches of the first epoch, evenly spaced, whose gradients at its end are compared; a quarter of a short one."""
TENTHS = 10
REMEMBERED = 32
"""Most sequences of the first tenth, evenly spaced, whose loss is measured after each tenth; a fiftieth of a short
epoch, and four at least."""


class Preset(NamedTuple):
    """A Llama-shaped decoder with one embedding for input and output. inner: width of the feed-forward layers."""

    width: int
    layers: int
    heads: int
    inner: int
    vocabulary: int
    learning_rate: float


PRESETS = {
    "tiny": Preset(64, 2, 2, 192, 2048, 3e-3),
    "10M": Preset(256, 8, 4, 768, 16_384, 2e-3),
    "50M": Preset(512, 10, 8, 1536, 32_768, 1e-3),
    "160M": Preset(768, 15, 12, 2304, 49_152, 6e-4),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One training.

    model: a preset, or the directory of a config.json. classes: int32 (V,), the class of each token id. class_count:
    number of classes. schedule: of the learning rate (`rate`). attend_within_documents: attention stops at the ends of
    documents; validation then scores each document alone, without its first token. heldout: source -> int32 (2 or 3, n,
    L): classes, -1 for none; positions in their documents, from 0; and 1 for tokens that count, 0 for others. Without
    the third row all count.
    """

    model: str
    classes: NDArray[np.int32]
    class_count: int
    seed: int
    learning_rate: float
    schedule: str
    batch: int
    epochs: int
    attend_within_documents: bool
    device: str
    heldout: Mapping[str, NDArray[np.int32]]


def make_model(model: str, class_count: int, length: int, seed: int) -> torch.nn.Module:
    """The model with random weights, on the CPU.

    Raises:
        InputError: as `check_model`; or the training would take more than this machine's memory.
    """
    import torch

    size = count_weights(model, class_count, length)
    if size * BYTES_PER_WEIGHT > main_memory():
        raise InputError(
            f"evidence.model {model} has {size:,} weights, which take {byte_size(size * BYTES_PER_WEIGHT)} to "
            f"train, and this machine has {byte_size(main_memory())}; give a smaller model"
        )
    torch.manual_seed(seed)
    return _build(model, class_count, length)


def count_weights(model: str, class_count: int, length: int) -> int:
    """The number of a model's weights."""
    return sum(weight.numel() for weight in _outline(model, class_count, length).parameters())


def _outline(model: str, class_count: int, length: int) -> torch.nn.Module:
    """The model without its weights."""
    import torch

    with torch.device("meta"):
        return _build(model, class_count, length)


def _build(model: str, class_count: int, length: int) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    config = _config(model, class_count, length)
    with quiet():
        try:
            built: torch.nn.Module = AutoModelForCausalLM.from_config(
                config, attn_implementation="sdpa", trust_remote_code=False
            )
        except Exception as error:
            raise unusable(Path(model), error) from error
    return built


def _config(model: str, class_count: int, length: int) -> Any:
    if model in PRESETS:
        from transformers import LlamaConfig

        preset = PRESETS[model]
        return LlamaConfig(
            vocab_size=class_count,
            hidden_size=preset.width,
            num_hidden_layers=preset.layers,
            num_attention_heads=preset.heads,
            num_key_value_heads=preset.heads,
            intermediate_size=preset.inner,
            max_position_embeddings=length,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    directory = Path(model)
    if not directory.is_dir():
        raise InputError(
            f"evidence.model is {model!r}; expected {', '.join(PRESETS)}, or a directory with a config.json"
        )
    config = load_config(directory)
    of_text = config.get_text_config()
    if of_text.vocab_size < class_count:
        raise InputError(
            f"{directory / 'config.json'} has {of_text.vocab_size:,} tokens and model.base {class_count:,}; expected "
            "as many at least: give the configuration of the model that you train"
        )
    positions = getattr(of_text, "max_position_embeddings", None) or length
    if positions < length:
        raise InputError(
            f"{directory / 'config.json'} has {positions:,} positions and sequence.length is {length:,}; expected as "
            "many at least"
        )
    return config


def check_model(model: str, length: int) -> None:
    """
    Raises:
        InputError: there is no such preset; or the config.json cannot be used, has too few positions, or does not
            describe a causal model.
    """
    if model not in PRESETS:
        _outline(model, 1, length)


class _InMemoryRows:
    """Rows of an export that are in memory (`readers.export.Source`)."""

    def __init__(self, ids: np.ndarray, lengths: np.ndarray, counts: np.ndarray) -> None:
        self.dtype, self._ids, self._lengths, self._counts = ids.dtype, ids, lengths, counts
        self._first = np.concatenate([[0], np.cumsum(counts)])

    def ids(self, first: int, end: int) -> np.ndarray:
        return self._ids[first:end]

    def documents(self, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        return self._lengths[self._first[first] : self._first[end]], self._counts[first:end]


def in_memory_export(arrays: Mapping[str, np.ndarray], batch: int) -> Export:
    """Rows in memory as an export, for trainers' readers. arrays: `ids` (n, L) in the order of the first epoch;
    `lengths`, tokens of all documents in them; `counts`, documents of each row; `epochs` int64 (E, n), the rows of each
    epoch; `padded` bool (1,); with a loss mask, `trained` int64 (2, K): begins and ends of trained spans, counted as
    row x L + place in the row."""
    from dagster_divorder.readers.export import Export

    rows, length = arrays["ids"].shape
    manifest = {
        "plan": "",
        "sequence_length": length,
        "batch": batch,
        "padded_rows": int(arrays["padded"][0]),
        "rows": rows,
        "layout": None,
    }
    source = _InMemoryRows(arrays["ids"], arrays["lengths"], arrays["counts"])
    trained = Spans(*arrays["trained"]) if "trained" in arrays else None
    return Export(Path(), manifest, source, arrays["epochs"], trained)


def token_classes(model: str, counts: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """(class of each token id, int32 (V,); number of classes). counts: int64 (V,), how often each id occurs in
    training.

    For a model in a directory, each id is a class. For a preset, each id is a class if its vocabulary has room for all;
    otherwise the most frequent ids fill three quarters of it, and the others share the last quarter.
    """
    if model not in PRESETS:
        return np.arange(len(counts), dtype=np.int32), len(counts)
    room = PRESETS[model].vocabulary
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    if len(counts) > room:
        frequent = room - room // 4
        rank = np.where(rank < frequent, rank, frequent + (rank - frequent) % (room - frequent))
    return rank.astype(np.int32), min(room, len(counts))


def train(task: Task, data: Export, advance: Callable[[int], object] = lambda tokens: None) -> Trained:
    """Trains on all rows of an open export that has the task's epochs. advance: is called with the tokens done.

    Raises:
        InputError: as `make_model`; memory ran out.
    """
    import torch

    try:
        with torch_threads(1) if task.device == "cpu" else _deterministic(), quiet():
            return _Loop(task, data).run(advance)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"memory ran out in training evidence.model {task.model} on batches of {task.batch} sequences of "
            f"{data.length:,} tokens; give a smaller model or a smaller evidence.batch ({type(error).__name__} of "
            f"torch {torch.__version__})"
        ) from error


@contextmanager
def _deterministic() -> Iterator[None]:
    """In this context kernels of a GPU give the same numbers each time. cuBLAS reads its variable at its first call in
    a process; a value that is already set stays."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class _Loop:
    def __init__(self, task: Task, data: Export) -> None:
        import torch

        from dagster_divorder.readers.forms import IGNORED
        from dagster_divorder.readers.loading import SequenceStream

        self.task, self.length, self.ignored = task, data.length, IGNORED
        self.model = make_model(task.model, task.class_count, data.length, task.seed).to(task.device)
        self.model.train()
        self.weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        matrices = dict(named_matrices(self.model))
        self.matrices = list(matrices.values())
        self.optimiser = torch.optim.AdamW(
            self.weights, lr=task.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY
        )
        # This form gives the positions of tokens in their documents.
        self.stream = SequenceStream(
            data, batch=task.batch, rank=0, world_size=1, form="torchtitan", native=True
        )
        self.classes = torch.from_numpy(task.classes.astype(np.int64)).to(task.device)
        # The processor multiplies in this dtype; the weights stay float32.
        self.dtype = _dtype(task.device)
        self.steps = len(self.stream)
        self.averages = _Averages(self.weights, self.steps)

    def run(self, advance: Callable[[int], object]) -> Trained:
        import torch

        task, steps = self.task, self.steps
        epoch = steps // task.epochs
        trained = Trained(
            losses=np.full(steps, np.nan, np.float32),
            norms=np.full(steps, np.nan, np.float32),
            heldout=np.full((task.epochs, len(task.heldout)), np.nan),
            averaged=np.full((len(AVERAGES), len(task.heldout)), np.nan),
            remembered=np.full(TENTHS, np.nan),
            ranks=np.full((len(RANKED_AT), len(self.matrices)), np.nan),
            noise=np.full(2, np.nan),
            failed=-1,
        )
        ranked = [max(1, round(at * steps)) for at in RANKED_AT]
        tenths = [max(1, round((at + 1) * epoch / TENTHS)) for at in range(TENTHS)]
        ranks: dict[int, list[NDArray[np.float64]]] = {end: [] for end in ranked}
        for step, (inputs, labels) in enumerate(self.stream):
            for group in self.optimiser.param_groups:
                group["lr"] = task.learning_rate * rate(step, steps, task.schedule)
            loss = self._backward(inputs, labels)
            if not math.isfinite(loss):
                advance((steps - step) * task.batch * self.length)  # nothing is left to do
                return trained._replace(failed=step)
            trained.losses[step] = loss
            gradients = [cast("torch.Tensor", weight.grad) for weight in self.weights]
            trained.norms[step] = float(torch.nn.utils.get_total_norm(gradients))
            for end in ranked:
                if end - RANKED_BATCHES <= step < end:
                    ranks[end].append(np.array([stable_rank(matrix.grad) for matrix in self.matrices]))
            self.optimiser.step()
            self.averages.add(step)
            advance(task.batch * self.length)
            done = step + 1
            for tenth, end in enumerate(tenths):
                if done == end:
                    count = min(REMEMBERED, max(4, epoch * task.batch // 50))
                    trained.remembered[tenth] = self._remembered(tenths[0] * task.batch, count)
            if done == epoch:
                trained.noise[:] = self._noise(epoch, noisy_batches(epoch))
            if done % epoch == 0 and done // epoch <= task.epochs:
                trained.heldout[done // epoch - 1] = self._heldout()
        for at, end in enumerate(ranked):
            trained.ranks[at] = np.mean(ranks[end], axis=0)
        for at, average in enumerate(self.averages.weights()):
            with torch.no_grad():
                for weight, values in zip(self.weights, average, strict=True):
                    weight.copy_(values)
            trained.averaged[at] = self._heldout()
        return trained

    def _backward(self, inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> float:
        """The loss of a batch; its gradient goes into the weights."""
        self.optimiser.zero_grad()
        counted = int((labels != self.ignored).sum())
        total = 0.0
        for rows in self._micro_batches(len(labels)):
            loss = self._sum(*self._classes(inputs, labels, rows)) / max(1, counted)
            loss.backward()
            total += float(loss.detach())
        return total

    def _micro_batches(self, rows: int) -> Iterator[slice]:
        most = LOGITS // (self.length * self.task.class_count)
        if self.task.attend_within_documents:
            most = min(most, MASKED // self.length**2)
        return (slice(at, at + max(1, most)) for at in range(0, rows, max(1, most)))

    def _classes(
        self, inputs: Mapping[str, torch.Tensor], labels: torch.Tensor, rows: slice
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """(classes of the input, classes to predict, positions if attention stops at documents) of a micro-batch."""
        device = self.task.device
        ids, next_ids = inputs["input"][rows].to(device).long(), labels[rows].to(device)
        targets = self.classes[next_ids.clamp(min=0)].masked_fill(next_ids == self.ignored, self.ignored)
        positions = inputs["positions"][rows].to(device) if self.task.attend_within_documents else None
        return self.classes[ids], targets, positions

    def _sum(
        self, classes: torch.Tensor, targets: torch.Tensor, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The sum of the losses of all tokens to predict."""
        import torch

        options: dict[str, Any] = {}
        if positions is not None:
            document = (positions == 0).cumsum(1)
            same = document[:, :, None] == document[:, None, :]
            options = {"attention_mask": same.tril()[:, None], "position_ids": positions}
        with torch.autocast(self.task.device, self.dtype, enabled=self.dtype != torch.float32):
            scores = self.model(input_ids=classes, use_cache=False, **options).logits
        return torch.nn.functional.cross_entropy(
            scores.flatten(0, 1).float(), targets.flatten(), ignore_index=self.ignored, reduction="sum"
        )

    def _heldout(self) -> list[float]:
        """The held-out loss of each source, sorted."""
        return [self._loss_of(self.task.heldout[name]) for name in sorted(self.task.heldout)]

    def _loss_of(self, heldout: NDArray[np.int32]) -> float:
        """Nats a token of rows of `Task.heldout`; NaN if they have no token to predict."""
        import torch

        heldout = heldout[..., : max(2, int((heldout[0] >= 0).sum(axis=1).max()))]
        counts = heldout[0, :, 1:] >= 0 if len(heldout) == 2 else heldout[2, :, 1:] > 0
        if self.task.attend_within_documents:
            # The first token of a document is preceded by another document.
            counts = counts & (heldout[1, :, 1:] > 0)
        total, counted = 0.0, int(counts.sum())
        with torch.no_grad():
            for rows in self._micro_batches(heldout.shape[1]):
                classes, places = torch.from_numpy(heldout[:2, rows].astype(np.int64)).to(self.task.device)
                ignored = torch.from_numpy(~counts[rows]).to(self.task.device)
                targets = classes[:, 1:].masked_fill(ignored, self.ignored)
                positions = places[:, :-1] if self.task.attend_within_documents else None
                total += float(self._sum(classes[:, :-1].clamp(min=0), targets, positions))
        return total / counted if counted else math.nan

    def _remembered(self, first: int, count: int) -> float:
        """The loss of `count` of the `first` sequences."""
        import torch

        inputs, labels = self.stream.dataset.__getitems__(_evenly(first, count))
        total, counted = 0.0, int((labels != self.ignored).sum())
        with torch.no_grad():
            for rows in self._micro_batches(len(labels)):
                total += float(self._sum(*self._classes(inputs, labels, rows)))
        return total / max(1, counted)

    def _noise(self, steps: int, count: int) -> tuple[float, float]:
        """`Trained.noise` of `count` of the first `steps` batches, with the current weights."""
        import torch

        batch, data = self.task.batch, self.stream.dataset
        chosen = _evenly(steps, count)
        total = [torch.zeros_like(weight) for weight in self.weights]
        squares = 0.0
        for at in chosen:
            self._backward(*data.__getitems__(range(at * batch, (at + 1) * batch)))
            gradients = [cast("torch.Tensor", weight.grad) for weight in self.weights]
            squares += float(torch.nn.utils.get_total_norm(gradients)) ** 2
            for sum_, gradient in zip(total, gradients, strict=True):
                sum_ += gradient
        count = len(chosen)
        of_mean = (float(torch.nn.utils.get_total_norm(total)) / count) ** 2
        if count < 2:
            return math.nan, of_mean
        return (squares / count - of_mean) * count / (count - 1), of_mean


class _Averages:
    """Averages of `weights` after each of T = `steps` steps; AVERAGES has their names."""

    def __init__(self, weights: list[torch.nn.Parameter], steps: int) -> None:
        import torch

        self.own = [weight.detach() for weight in weights]
        self.sums, self.faded = ([torch.zeros_like(weight) for weight in self.own] for _ in range(2))
        last = max(1, round(AVERAGED * steps))
        self.checkpoints = {steps - 1 - age for age in _evenly(last, CHECKPOINTS)}
        # The mean age of weights is (1 - share) / share steps.
        self.share = 1 / (1 + MEAN_AGE * steps)
        self.total = 0.0

    def add(self, step: int) -> None:
        """Counts the weights after a step, counted from 0."""
        import torch

        torch._foreach_lerp_(self.faded, self.own, self.share)
        self.total += (1 - self.total) * self.share
        if step in self.checkpoints:
            torch._foreach_add_(self.sums, self.own)

    def weights(self) -> Iterator[list[torch.Tensor]]:
        """The weights of each average, after the last step."""
        yield [values / len(self.checkpoints) for values in self.sums]
        # It began at zero.
        yield [values / self.total for values in self.faded]


def _evenly(total: int, count: int) -> list[int]:
    """`count` numbers of 0..total - 1, or fewer, evenly spaced."""
    return np.unique(np.linspace(0, total - 1, min(total, count)).astype(int)).tolist()


def noisy_batches(epoch: int) -> int:
    """Number of an epoch's batches whose gradients at its end are compared."""
    return min(NOISY_BATCHES, max(4, epoch // 4))


def named_matrices(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The weight matrices of the blocks, without embeddings, head, norms and biases."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and re.search(r"\.\d+\.", name):
            yield name, weight


def matrix_names(model: str, class_count: int, length: int) -> list[str]:
    """Names of the W matrices whose gradients are ranked, in order."""
    return [name for name, _ in named_matrices(_outline(model, class_count, length))]


def is_attention(name: str) -> bool:
    """Whether a matrix belongs to attention, not to a feed-forward layer."""
    return "att" in name.lower()


def stable_rank(gradient: torch.Tensor | None) -> float:
    """||G||_F^2 / ||G||_2^2 of a matrix: 1 if all rows have one direction, at most its rank; NaN if it is zero or None
    (the weight has no gradient)."""
    import torch

    if gradient is None:
        return math.nan
    values = torch.linalg.svdvals(gradient.float()).double()
    largest = float(values.max())
    return float((values**2).sum()) / largest**2 if largest > 0 else math.nan


def rate(step: int, steps: int, schedule: str) -> float:
    """The factor of the learning rate at a step, 1 after the warm-up. cosine: then falls to LAST_RATE. wsd: falls over
    the last DECAY, as 1 less the square root. constant: stays 1."""
    warm = max(1.0, WARM_UP * steps)
    if step + 1 < warm:
        return (step + 1) / warm
    done = (step + 1 - warm) / max(1.0, steps - warm)
    if schedule == "constant":
        return 1.0
    if schedule == "wsd":
        left = 1 - math.sqrt(max(0.0, 1 - (steps - step - 1) / max(1.0, DECAY * steps)))
    else:
        left = 0.5 * (1 + math.cos(math.pi * done))
    return LAST_RATE + (1 - LAST_RATE) * left


def _dtype(device: str) -> Any:
    """bfloat16 if the processor multiplies it, else float32."""
    import torch

    if device == "cpu":
        return getattr(torch, cpu_dtype("amx_bf16", "avx512_bf16"))
    return torch.bfloat16 if device == "cuda" else torch.float32


def learning_rates(model: str, given: Sequence[float]) -> tuple[float, ...]:
    """The given rates, or the preset's own; 1e-3 for a directory."""
    return tuple(given) or (PRESETS[model].learning_rate if model in PRESETS else 1e-3,)
