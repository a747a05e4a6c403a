"""Trains a small decoder on packed sequences in a given order, and measures the effects of the order.

Letters: S sequences, n of them an epoch, B a batch, L tokens a sequence, T steps of all E epochs, W weight matrices.

The decoder predicts the next token. Batches are consecutive in the order and never shuffled again. The gradient is
never clipped, because its norm is measured. AdamW (betas 0.9 and 0.95, weight decay 0.1); the learning rate rises over
WARM_UP of the steps and then falls (`rate`).
Guarantee: the same sequences, order, seed and settings give the same numbers on one type of machine: one thread on a
CPU, deterministic kernels on a GPU; weights are drawn on the CPU, so that all devices begin alike.
Cost: 6 multiplications a token for each weight.
Sources: the epoch boundary, Diversity-Ordered Training; the stable rank of batch gradients, Don't Shuffle, Optimize;
validation loss by source, TokenShard (On Shuffling Tokens).
Known weakness: the rarest ids, beyond VOCABULARY, share the last quarter of it, so losses do not compare with those of
other models.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.evidence.training_evidence import RANKED_AT, Trained
from dagster_divorder.engine.memory import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.deep import torch_threads
from dagster_divorder.models.pretrained import quiet
from dagster_divorder.models.spec import cpu_dtype
from dagster_divorder.models.validation import IGNORED, summed_losses, text_losses

if TYPE_CHECKING:
    import torch

WARM_UP, LAST_RATE = 0.05, 0.1
BETAS, WEIGHT_DECAY = (0.9, 0.95), 0.1
LOGITS = 1 << 25
"""Most scores of a micro-batch: 128 MB of float32, kept some three times."""
MASKED = 1 << 26
"""Most pairs of tokens in the masks of a micro-batch."""
RANKED_BATCHES = 4
"""Batches before each of RANKED_AT whose gradients are ranked."""

Texts = tuple[NDArray[np.integer], NDArray[np.int64], NDArray[np.bool_]]
"""ids, lengths and counts, as `validation.text_losses` takes them."""


WIDTH, LAYERS, HEADS, INNER = 64, 2, 2, 192
"""A Llama-shaped decoder with one embedding for input and output. INNER: width of the feed-forward layers."""
VOCABULARY, LEARNING_RATE = 2048, 3e-3


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One training.

    classes: int64 (V,), the class of each token id. class_count: number of classes. apart: attention stops at the ends
    of documents. heldout: source -> texts to validate on after each epoch, read one by one in windows of L tokens.
    """

    classes: NDArray[np.int64]
    class_count: int
    seed: int
    batch: int
    apart: bool
    device: str
    heldout: Mapping[str, Texts]
    learning_rate: float = LEARNING_RATE


def make_model(class_count: int, length: int, seed: int | None = None) -> torch.nn.Module:
    """The model with random weights, on the CPU; without a seed the model without weights."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=class_count,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    with quiet(), torch.device("meta" if seed is None else "cpu"):
        torch.manual_seed(seed or 0)
        made: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return made


def token_classes(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """(class of each token id, int64 (V,); number of classes). counts: int64 (V,), how often each id occurs in
    training. Each id is a class if VOCABULARY has room for all; otherwise the most frequent ids fill three quarters of
    it, and the others share the last quarter.
    """
    room = VOCABULARY
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    if len(counts) > room:
        frequent = room - room // 4
        rank = np.where(rank < frequent, rank, frequent + (rank - frequent) % (room - frequent))
    return rank, min(room, len(counts))


def train(
    task: Task, rows: Mapping[str, np.ndarray], advance: Callable[[int], object] = lambda tokens: None
) -> Trained:
    """Trains on sequences in an order; ends where a loss is not finite.

    rows: `ids`, integer (S, L); `counts`, bool (S, L), tokens with a loss; `begins`, bool (S, L), first tokens of
    documents; `epochs`, int64 (E, n), the rows of each epoch, n a multiple of B. advance: is called with the tokens
    done.

    Raises:
        InputError: memory ran out.
    """
    import torch

    try:
        with torch_threads(1) if task.device == "cpu" else _deterministic(), quiet():
            return _train(task, rows, advance)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"memory ran out in training on batches of {task.batch} sequences of {rows['ids'].shape[1]:,} tokens; "
            f"lower sequence.batch or evidence.tokens ({type(error).__name__} of torch {torch.__version__})"
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


def _train(task: Task, rows: Mapping[str, np.ndarray], advance: Callable[[int], object]) -> Trained:
    import torch

    length, batches = rows["ids"].shape[1], rows["epochs"].reshape(-1, task.batch)
    steps, epochs = len(batches), len(rows["epochs"])
    model = make_model(task.class_count, length, task.seed).to(task.device).train()
    weights, matrices = list(model.parameters()), [weight for _, weight in named_matrices(model)]
    optimiser = torch.optim.AdamW(weights, betas=BETAS, weight_decay=WEIGHT_DECAY)
    narrow = matrix_dtype(task.device)
    autocast = torch.autocast(task.device, narrow, enabled=narrow != torch.float32)
    heldout_batch = max(length, LOGITS // task.class_count)
    trained = Trained(
        losses=np.full(steps, np.nan, np.float32),
        norms=np.full(steps, np.nan, np.float32),
        heldout=np.full((epochs, len(task.heldout)), np.nan),
        ranks=np.full((len(RANKED_AT), len(matrices)), np.nan),
    )
    ranked = [max(1, round(at * steps)) for at in RANKED_AT]
    ranks: list[list[list[float]]] = [[] for _ in ranked]
    for step, chosen in enumerate(batches):
        for group in optimiser.param_groups:
            group["lr"] = task.learning_rate * rate(step, steps)
        optimiser.zero_grad()
        loss = 0.0
        for part, share in _micro_batches(task, rows, chosen):
            with autocast:
                part_loss = summed_losses(model, **part).sum() * share
            part_loss.backward()
            loss += float(part_loss.detach())
        if not math.isfinite(loss):
            advance((steps - step) * task.batch * length)  # nothing is left to do
            return trained
        trained.losses[step] = loss
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        trained.norms[step] = float(torch.nn.utils.get_total_norm(gradients))
        for of_end, end in zip(ranks, ranked, strict=True):
            if end - RANKED_BATCHES <= step < end:
                of_end.append([stable_rank(matrix.grad) for matrix in matrices])
        optimiser.step()
        advance(task.batch * length)
        epoch, left = divmod(step + 1, steps // epochs)
        if not left:
            model.eval()
            with autocast:
                for at, source in enumerate(sorted(task.heldout)):
                    texts = task.heldout[source]
                    tokens, losses = text_losses(model, *texts, window=length, batch_tokens=heldout_batch)
                    trained.heldout[epoch - 1, at] = losses.sum() / tokens.sum() if tokens.any() else np.nan
            model.train()
    trained.ranks[:] = [np.mean(of_end, axis=0) for of_end in ranks]
    return trained


def _micro_batches(
    task: Task, rows: Mapping[str, np.ndarray], chosen: NDArray[np.int64]
) -> Iterator[tuple[dict[str, torch.Tensor], float]]:
    """Parts of a batch that fit into memory, as arguments of `summed_losses`, and the share of a token in the loss.
    chosen: int64 (B,), the rows of the batch."""
    import torch

    length = rows["ids"].shape[1]
    most = LOGITS // (length * task.class_count)
    if task.apart:
        most = min(most, MASKED // length**2)
    classes = torch.from_numpy(task.classes[rows["ids"][chosen]]).to(task.device)
    counts = torch.from_numpy(rows["counts"][chosen]).to(task.device)
    targets = torch.where(counts, classes, IGNORED)[:, 1:]
    share = 1 / max(1, int(counts[:, 1:].sum()))
    begins = torch.from_numpy(rows["begins"][chosen]).to(task.device)
    places = torch.arange(length - 1, device=task.device)
    for at in range(0, len(chosen), max(1, most)):
        part = slice(at, at + max(1, most))
        given = {"ids": classes[part, :-1], "targets": targets[part]}
        if task.apart:
            first = begins[part, :-1]
            document = first.cumsum(1)
            same = document[:, :, None] == document[:, None, :]
            positions = places - torch.where(first, places, 0).cummax(1).values
            given |= {"attention_mask": same.tril()[:, None], "position_ids": positions}
        yield given, share


def named_matrices(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The weight matrices of the blocks, without embeddings, head, norms and biases."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and re.search(r"\.\d+\.", name):
            yield name, weight


def stable_rank(gradient: torch.Tensor | None) -> float:
    """||G||_F^2 / ||G||_2^2 of a matrix: 1 if all rows have one direction, at most its rank; NaN if it is zero or None
    (the weight has no gradient)."""
    import torch

    if gradient is None:
        return math.nan
    values = torch.linalg.svdvals(gradient.float()).double()
    largest = float(values.max())
    return float((values**2).sum()) / largest**2 if largest > 0 else math.nan


def rate(step: int, steps: int) -> float:
    """The factor of the learning rate at a step: 1 after the warm-up, then falling to LAST_RATE as a cosine."""
    warm = max(1.0, WARM_UP * steps)
    if step + 1 < warm:
        return (step + 1) / warm
    left = 0.5 * (1 + math.cos(math.pi * (step + 1 - warm) / max(1.0, steps - warm)))
    return LAST_RATE + (1 - LAST_RATE) * left


def matrix_dtype(device: str) -> Any:
    """The dtype of products: bfloat16 if the processor multiplies it, else float32. Weights stay float32."""
    import torch

    if device == "cpu":
        return getattr(torch, cpu_dtype("amx_bf16", "avx512_bf16"))
    return torch.bfloat16 if device == "cuda" else torch.float32
