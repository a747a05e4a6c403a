"""A small decoder on top of the bootstrap model's token table, so that deep embeddings need no download.

Letters: V vocabulary, D width, N documents, P pairs of spans, B pairs of a batch, T tokens of all pairs.

From each half of a document a span is cut. The token table, its rows weighted by idf, is first turned into coordinates
of what two spans of a document share (`core.vectors.shared_topic`); it is not trained further. A Llama of LAYERS layers
stands on it. z and z' are the means of two spans' last hidden states, less the mean of the batch, scaled to length 1;
with a_ij = z_i z'_j / TEMPERATURE the layers are trained on the loss

    -1/2B sum_i [ log softmax_j(a_ij)_i + log softmax_j(a_ji)_i ]

which brings two spans of one document closer than spans of different documents. Before the first step the layers add
nothing, and NORM_EPSILON is far above the square of hidden states, which makes the norms almost linear. So training
starts from the weighted mean of token vectors; ordinary norms would make all tokens equal and undo the weights.

Guarantee: an ordinary Hugging Face checkpoint (config.json, tokenizer.json, tokenizer_config.json, model.safetensors)
that holds every weight of its architecture; the same bytes for the same pairs, table and seed on one type of machine,
whatever the number of threads.
Cost: 6 multiplications a token for each weight of the layers, 12 D^2 + 256 D of them; memory: T ids, some 100 P D
bytes for means of spans, and some 600 MB for a batch at D = 128. Times: docs/decisions/deep-embeddings.md.
Sources: Oord, Li and Vinyals 2018 (the loss); Giorgi et al. 2021 (spans of a document); Zhang, Dauphin and Ma 2019
(layers that begin at zero).
Known weakness: the halves of a document may share other things than its topic (a signature, a layout, a language). It
is no language model: it has never predicted a token.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.vectors.pool import pool
from dagster_divorder.core.vectors.shared_topic import topic_map
from dagster_divorder.models.checkpoint import TOKENIZER, embedding_table, read_json, write_checkpoint
from dagster_divorder.models.deep import torch_threads

if TYPE_CHECKING:
    import torch
    from transformers import LlamaModel

LAYERS = 2
SPAN = 128
"""Most tokens of a span."""

SHORTEST = 8
"""Fewest tokens of a span; documents of fewer than twice as many are left out."""

EPOCHS = 4
"""Most passes over a small corpus."""

BATCH = 64
TEMPERATURE = 0.2
LEARNING_RATE = 3e-3
WARM_UP = 0.1
NORM_EPSILON = 10.0

GROUPS = 8
"""Most groups, by length, in which the spans of a batch run, each group on one thread.

One group would be padding for the most part. Threads that share a group would wait for each other at every step, and
their number would change the last bits of sums."""

CURVE_POINTS = 50


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of spans, each of one document, in the order of training.

    document: int64 (P,), place among the planned documents. begin: int64 (P, 2), first tokens of the two spans. length:
    int64 (P,), tokens of each span. batch_starts: int64 (batches + 1,), pairs before each batch. epochs: how often the
    documents are read.
    """

    document: NDArray[np.int64]
    begin: NDArray[np.int64]
    length: NDArray[np.int64]
    batch_starts: NDArray[np.int64]
    epochs: int

    @property
    def span_starts(self) -> NDArray[np.int64]:
        """int64 (2 P + 1,): tokens before each span; the second span of a pair follows the first."""
        return np.concatenate([[0], np.cumsum(np.repeat(self.length, 2))])


def plan(lengths: NDArray[np.int64], tokens: int, *, seed: int = 0) -> Pairs:
    """Pairs of at most `tokens` tokens in all, from the first documents of `lengths` (N,), each document once an epoch.

    There are no pairs if fewer than two documents are long enough, or `tokens` does not suffice for two.
    """
    span = np.minimum(lengths // 2, SPAN)
    documents = np.flatnonzero(span >= SHORTEST)
    total = np.cumsum(2 * span[documents])
    documents = documents[: np.searchsorted(total, tokens, side="right")]
    if len(documents) < 2:
        none = np.zeros(0, np.int64)
        return Pairs(none, none.reshape(0, 2), none, np.zeros(1, np.int64), 0)
    epochs = min(EPOCHS, tokens // int(total[len(documents) - 1]))
    rng = np.random.default_rng(seed)
    document = np.concatenate([rng.permutation(documents) for _ in range(epochs)])
    half, span = lengths[document] // 2, span[document]
    room = np.column_stack([half, lengths[document] - half]) - span[:, None]
    begin = (rng.random(room.shape) * (room + 1)).astype(np.int64)
    begin[:, 1] += half
    # The numbers of pairs in batches differ by at most one.
    batches = -(-len(documents) // BATCH)
    ends = np.arange(1, batches + 1) * len(documents) // batches
    starts = np.concatenate([[0], *(ends + epoch * len(documents) for epoch in range(epochs))])
    return Pairs(document, begin, span, starts, epochs)


def train(
    base: Path | str,
    directory: Path | str,
    weights: NDArray[np.float32],
    pairs: Pairs,
    ids: NDArray[np.integer],
    *,
    seed: int = 0,
    threads: int = 1,
    advance: Callable[[int], object] = lambda tokens: None,
) -> dict[str, Any]:
    """Trains on pairs and writes a checkpoint into `directory`, which is created if it is missing.

    base: directory with the table, float32 (V, D), and its tokenizer. weights: float32, at most V, scale its rows. ids:
    (T,), the tokens of all pairs, laid out by `pairs.span_starts`. threads: at most GROUPS are used. advance: called
    with the number of tokens of every batch. Without pairs the table is weighted and the layers do nothing.

    Returns:
        layers, width, parameters (of the layers), tokens, documents, epochs, batches, and loss: at most CURVE_POINTS
        points [tokens so far, mean loss since the previous point].

    Raises:
        InputError: more weights than rows, another number of ids than the pairs have, or an id without weight.
    """
    import torch

    base, directory = Path(base), Path(directory)
    table = embedding_table(base).weights
    config = {
        **read_json(base / "config.json"),
        "architectures": ["LlamaModel"],
        "intermediate_size": 2 * table.shape[1],
        "num_hidden_layers": LAYERS,
        "rms_norm_eps": NORM_EPSILON,
    }
    with torch_threads(1), torch.random.fork_rng(devices=[]), ThreadPoolExecutor(threads) as workers:
        torch.manual_seed(seed)
        model = _model(_topical(table, weights, pairs, ids), config)
        losses = _fit(model, pairs, ids, advance, workers)
    directory.mkdir(parents=True, exist_ok=True)
    for name in (TOKENIZER, "tokenizer_config.json"):
        shutil.copyfile(base / name, directory / name)
    write_checkpoint(directory, config, {key: weight.numpy() for key, weight in model.state_dict().items()})
    return {
        "layers": LAYERS,
        "width": table.shape[1],
        "parameters": sum(weight.numel() for weight in model.layers.parameters()),
        "tokens": len(ids),
        "documents": len(np.unique(pairs.document)),
        "epochs": pairs.epochs,
        "batches": len(losses),
        "loss": _curve(losses),
    }


def _topical(
    table: NDArray[np.float32], weights: NDArray[np.float32], pairs: Pairs, ids: NDArray[np.integer]
) -> NDArray[np.float32]:
    """The weighted table in coordinates of the shared topic, scaled to a root mean square of 1. Rows without weight are
    zero."""
    means = pool(ids, np.repeat(pairs.length, 2), table, weights)
    weighted = np.zeros_like(table)
    weighted[: len(weights)] = table[: len(weights)] * weights[:, None]
    topical = (weighted @ topic_map(means[::2], means[1::2])).astype(np.float32)
    size = math.sqrt(np.square(topical, dtype=np.float64).mean())
    return topical / np.float32(size) if size else topical


def _model(table: NDArray[np.float32], config: dict[str, Any]) -> LlamaModel:
    import torch
    from transformers import LlamaConfig, LlamaModel

    model = LlamaModel(LlamaConfig(**config, use_cache=False)).float()
    with torch.no_grad():
        model.embed_tokens.weight.copy_(torch.from_numpy(table))
        for layer in model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.embed_tokens.weight.requires_grad_(False)
    return model


def _fit(
    model: LlamaModel,
    pairs: Pairs,
    ids: NDArray[np.integer],
    advance: Callable[[int], object],
    workers: ThreadPoolExecutor,
) -> list[tuple[int, float]]:
    """Trains the layers; returns tokens so far and loss of each batch."""
    import torch

    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    starts = pairs.span_starts[2 * pairs.batch_starts].tolist()
    losses: list[tuple[int, float]] = []
    for at, (first, last) in enumerate(pairwise(starts)):
        # The learning rate rises over the first tenth of the tokens, then falls to 0.
        middle = (first + last) / 2 / starts[-1]
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(middle / WARM_UP, (1 - middle) / (1 - WARM_UP))
        spans = np.repeat(pairs.length[pairs.batch_starts[at] : pairs.batch_starts[at + 1]], 2)
        loss = _backward(model, trained, ids[first:last], spans, workers)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        losses.append((last, loss))
        advance(last - first)
    return losses


def _backward(
    model: LlamaModel,
    trained: list[torch.nn.Parameter],
    ids: NDArray[np.integer],
    spans: NDArray[np.int64],
    workers: ThreadPoolExecutor,
) -> float:
    """The loss of a batch; its gradients go into `trained`. spans: int64 (2 B,), tokens of each span."""
    import torch

    groups = _groups(spans)
    means = list(workers.map(lambda group: _means(model, ids, spans, group), groups))
    # The loss sees all means at once; its gradient then goes back through each group alone.
    leaves = torch.cat([mean.detach() for mean in means])
    leaves.requires_grad_()
    by_span = torch.from_numpy(np.argsort(np.concatenate(groups)))
    loss = _loss(leaves[by_span].view(len(spans) // 2, 2, -1))
    (slope,) = torch.autograd.grad(loss, leaves)
    slopes = slope.split([len(group) for group in groups])
    gradients = workers.map(lambda mean, slope: torch.autograd.grad(mean, trained, slope), means, slopes)
    for weight, *of_groups in zip(trained, *gradients, strict=True):
        weight.grad = torch.stack(of_groups).sum(0)
    return loss.item()


def _groups(spans: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Places of the spans by rising length, in groups of about equal numbers of tokens."""
    by_length = np.argsort(spans, kind="stable")
    tokens = np.cumsum(spans[by_length])
    cuts = np.searchsorted(tokens, np.arange(1, GROUPS) * tokens[-1] / GROUPS)
    return [group for group in np.split(by_length, cuts) if len(group)]


def _means(
    model: LlamaModel, ids: NDArray[np.integer], spans: NDArray[np.int64], group: NDArray[np.int64]
) -> torch.Tensor:
    """Means of the last hidden states of the spans of a group, float32 (n, D)."""
    import torch

    length, starts = spans[group][:, None], (np.cumsum(spans) - spans)[group][:, None]
    at = np.arange(length.max())
    real = at < length
    # Tokens of a decoder do not see the padding after them, so any id will do.
    tokens = ids[np.where(real, starts + at, 0)].astype(np.int64)
    hidden = model(input_ids=torch.from_numpy(tokens)).last_hidden_state
    share = torch.from_numpy((real / length).astype(np.float32))
    return (share[:, None] @ hidden)[:, 0]


def _loss(means: torch.Tensor) -> torch.Tensor:
    import torch
    from torch.nn.functional import cross_entropy, normalize

    first, second = normalize(means - means.mean((0, 1)), dim=-1).unbind(1)
    scores = first @ second.T / TEMPERATURE
    same = torch.arange(len(scores))
    return (cross_entropy(scores, same) + cross_entropy(scores.T, same)) / 2


def _curve(losses: list[tuple[int, float]]) -> list[list[float]]:
    """At most CURVE_POINTS points: tokens so far, mean loss since the previous point."""
    if not losses:
        return []
    points = np.array_split(np.array(losses), min(CURVE_POINTS, len(losses)))
    return [[int(point[-1, 0]), round(float(point[:, 1].mean()), 5)] for point in points]
