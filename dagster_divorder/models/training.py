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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.evidence.training_evidence import RANKED_AT, Trained
from dagster_divorder.models.embed import torch_threads
from dagster_divorder.models.pretrained import quiet
from dagster_divorder.models.validation import IGNORED, summed_losses, text_losses

if TYPE_CHECKING:
    import torch

WIDTH, LAYERS, HEADS, INNER = 64, 2, 2, 192
"""A Llama-shaped decoder with one embedding for input and output. INNER: width of the feed-forward layers."""
VOCABULARY = 2048
PARTS = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
MATRICES = tuple(f"model.layers.{layer}.{part}.weight" for layer in range(LAYERS) for part in PARTS)
"""Names of the W weight matrices whose gradients are ranked: of the blocks, without the embedding."""
KINDS = {
    "attention": np.array(["attn" in name for name in MATRICES]),
    "feed-forward": np.array(["mlp" in name for name in MATRICES]),
}
"""The matrices of each kind, bool (W,)."""
WARM_UP, LAST_RATE = 0.05, 0.1
BETAS, WEIGHT_DECAY = (0.9, 0.95), 0.1
LOGITS = 1 << 25
"""Most scores of a micro-batch: 128 MB of float32, kept some three times."""
RANKED_BATCHES = 4
"""Batches before each of RANKED_AT whose gradients are ranked."""


class Heldout(NamedTuple):
    """Texts to validate on after each epoch, read one by one in windows of L tokens. sources: by name, rising. source:
    of each text, its place among them, int64 (n,). ids, lengths, counts: as `validation.text_losses` takes them."""

    sources: Sequence[str]
    source: NDArray[np.int64]
    ids: NDArray[np.integer]
    lengths: NDArray[np.int64]
    counts: NDArray[np.bool_]


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """What trainings share. classes: int64 (V,), the class of each token id."""

    classes: NDArray[np.int64]
    batch: int
    device: str
    heldout: Heldout

    @property
    def class_count(self) -> int:
        return int(self.classes.max()) + 1


def make_model(class_count: int, length: int, seed: int) -> torch.nn.Module:
    """The model with random weights, on the CPU."""
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
    with quiet():
        torch.manual_seed(seed)
        made: torch.nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return made


def token_classes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class of each token id, int64 (V,). counts: int64 (V,), how often each id occurs in training. Each id is a
    class if VOCABULARY has room for all; otherwise the most frequent ids fill three quarters of it, and the others
    share the last quarter.
    """
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    if len(counts) > VOCABULARY:
        frequent = VOCABULARY - VOCABULARY // 4
        rank = np.where(rank < frequent, rank, frequent + (rank - frequent) % (VOCABULARY - frequent))
    return rank


def train(
    task: Task,
    rows: Mapping[str, np.ndarray],
    seed: int,
    learning_rate: float,
    advance: Callable[[int], object] = lambda tokens: None,
) -> Trained:
    """Trains on sequences in an order; ends where a loss is not finite.

    rows: `ids`, integer (S, L); `counts`, bool (S, L), tokens with a loss; `epochs`, int64 (E, n), the rows of each
    epoch, n a multiple of B. advance: is called with the tokens done.
    """
    import torch

    length, batches = rows["ids"].shape[1], rows["epochs"].reshape(-1, task.batch)
    steps, epochs, sources = len(batches), len(rows["epochs"]), len(task.heldout.sources)
    micro_batch = max(1, LOGITS // (length * task.class_count))
    trained = Trained(
        losses=np.full(steps, np.nan, np.float32),
        norms=np.full(steps, np.nan, np.float32),
        heldout=np.full((epochs, sources), np.nan),
        ranks=np.full((len(RANKED_AT), len(MATRICES)), np.nan),
    )
    ranked = [max(1, round(at * steps)) for at in RANKED_AT]
    ranks: list[list[list[float]]] = [[] for _ in ranked]
    if task.device == "cuda":
        # Kernels that give the same numbers each time. cuBLAS reads its variable at its first call in a process.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    with torch_threads(1), quiet():
        model = make_model(task.class_count, length, seed).to(task.device).train()
        weights = dict(model.named_parameters())
        optimiser = torch.optim.AdamW(weights.values(), betas=BETAS, weight_decay=WEIGHT_DECAY)
        for step, chosen in enumerate(batches):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate * rate(step, steps)
            optimiser.zero_grad()
            loss = 0.0
            classes = torch.from_numpy(task.classes[rows["ids"][chosen]]).to(task.device)
            counts = torch.from_numpy(rows["counts"][chosen]).to(task.device)
            targets = torch.where(counts, classes, IGNORED)[:, 1:]
            share = 1 / max(1, int(counts[:, 1:].sum()))
            for first in range(0, len(chosen), micro_batch):
                part = slice(first, first + micro_batch)
                part_loss = summed_losses(model, classes[part, :-1], targets[part]).sum() * share
                part_loss.backward()
                loss += float(part_loss.detach())
            if not math.isfinite(loss):
                advance((steps - step) * task.batch * length)  # nothing is left to do
                return trained
            trained.losses[step] = loss
            gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
            trained.norms[step] = float(torch.nn.utils.get_total_norm(gradients.values()))
            for of_end, end in zip(ranks, ranked, strict=True):
                if end - RANKED_BATCHES <= step < end:
                    of_end.append([stable_rank(gradients[name]) for name in MATRICES])
            optimiser.step()
            advance(task.batch * length)
            epoch, left = divmod(step + 1, steps // epochs)
            if not left:
                model.eval()
                each = text_losses(
                    model,
                    *task.heldout[2:],
                    window=length,
                    batch_tokens=max(length, LOGITS // task.class_count),
                )
                tokens, losses = (np.bincount(task.heldout.source, of_texts, sources) for of_texts in each)
                np.divide(losses, tokens, out=trained.heldout[epoch - 1], where=tokens > 0)
                model.train()
    trained.ranks[:] = [np.mean(of_end, axis=0) for of_end in ranks]
    return trained


def stable_rank(gradient: torch.Tensor) -> float:
    """||G||_F^2 / ||G||_2^2 of a matrix: 1 if all rows have one direction, at most its rank; NaN if it is zero."""
    import torch

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
