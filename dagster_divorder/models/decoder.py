"""A small decoder on top of the bootstrap model's token table, so that deep embeddings need no download.

Letters: V vocabulary, D width, N documents, P pairs of spans, B pairs of a batch, T tokens of all pairs.

Out of each half of a document a span is cut. The token table, its rows weighted by idf, is first turned into
coordinates of what the two spans share (`core.vectors.shared_topic`); it then stays as it is. On it stands a Llama of
LAYERS layers. z and z' are the means of two spans' last hidden states, less the mean of the batch, scaled to length 1;
with a_ij = z_i z'_j / TEMPERATURE the layers are trained on the loss

    -1/2B sum_i [ log softmax_j(a_ij)_i + log softmax_j(a_ji)_i ]

under which two spans of one document come closer than spans of different ones. The layers write nothing before the
first step, and NORM_EPSILON is far above the square of hidden states, which makes the norms almost linear: training
starts from the weighted mean of token vectors, which norms of the usual kind would undo by making all tokens equal.

Guarantee: an ordinary Hugging Face checkpoint (config.json, tokenizer.json, tokenizer_config.json, model.safetensors)
that names every weight of its architecture; the same bytes for the same pairs, table and seed on one type of machine,
whatever the number of threads.
Cost: 6 multiplications a token for each weight of the layers, 12 D^2 + 256 D of them; memory: T ids, some 100 P D
bytes for means of spans, and some 600 MB for a batch at D = 128. Times: docs/decisions/bootstrap-decoder.md.
Sources: Oord, Li and Vinyals 2018 (the loss); Giorgi et al. 2021 (spans of a document); Zhang, Dauphin and Ma 2019
(layers that begin as nothing).
Known weakness: what two halves of a document share is not always its topic (a signature, a layout, a language); no
model of language, as it has never predicted a token.
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
"""Tokens of a span at most."""

SHORTEST = 8
"""Tokens of a span at least; documents of fewer than twice as many are left out."""

EPOCHS = 4
"""A small corpus is read so many times at most."""

BATCH = 64
TEMPERATURE = 0.2
LEARNING_RATE = 3e-3
WARM_UP = 0.1
NORM_EPSILON = 10.0

GROUPS = 8
"""Spans of a batch run by length in so many groups at most, each on one thread.

In one group, much would be padding. Threads that share a group wait for each other at every step, for long where cores
are busy, and the last bits of sums would depend on their number."""

CURVE_POINTS = 50


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two spans of a document each, in the order of training.

    document int64 (P,): the document's place among those planned; begin int64 (P, 2): where in it the spans begin;
    length int64 (P,) of each of the two; batch_starts int64 (batches + 1,): pairs before each batch; epochs: how often
    the documents are read.
    """

    document: NDArray[np.int64]
    begin: NDArray[np.int64]
    length: NDArray[np.int64]
    batch_starts: NDArray[np.int64]
    epochs: int

    @property
    def span_starts(self) -> NDArray[np.int64]:
        """int64 (2 P + 1,): tokens before each span, where the second span of a pair follows the first."""
        return np.concatenate([[0], np.cumsum(np.repeat(self.length, 2))])


def plan(lengths: NDArray[np.int64], tokens: int, *, seed: int = 0) -> Pairs:
    """Pairs of at most `tokens` tokens in all, out of the first documents of lengths (N,), each once in an epoch.

    No pairs where fewer than two documents are long enough, or `tokens` does not reach for two.
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
    # As many pairs in every batch, but for one more or less.
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
    """Trains on pairs and writes a checkpoint into `directory`, made where it is missing.

    `base` holds the table, float32 (V, D), and its tokenizer; weights float32, at most V of them, scale its rows; ids
    (T,) are the tokens of all pairs, laid out as `pairs.span_starts` says; `advance` is called with the tokens of every
    batch; more than GROUPS threads are of no use. Without pairs the table is weighted, and the layers do nothing.

    Returns:
        layers, width, parameters (of the layers), tokens, documents, epochs, batches, and loss: at most CURVE_POINTS
        points [tokens so far, mean loss since the point before].

    Raises:
        InputError: more weights than rows, ids that are not as many as the pairs ask for, or an id without weight.
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
    """The weighted table in coordinates of the shared topic, with a root mean square of 1; a row without weight is
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
    """Trains the layers; tokens so far and loss of each batch."""
    import torch

    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    starts = pairs.span_starts[2 * pairs.batch_starts].tolist()
    losses: list[tuple[int, float]] = []
    for at, (first, last) in enumerate(pairwise(starts)):
        # Up over the first tenth of the tokens, then down to nothing.
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
    """The loss of a batch of spans of the given lengths; its gradients are left in `trained`."""
    import torch

    groups = _groups(spans)
    means = list(workers.map(lambda group: _means(model, ids, spans, group), groups))
    # The loss sees all means at once; its gradient then goes back through each group alone.
    apart = torch.cat([part.detach() for part in means])
    apart.requires_grad_()
    back = torch.from_numpy(np.argsort(np.concatenate(groups)))
    loss = _loss(apart[back].view(len(spans) // 2, 2, -1))
    (slope,) = torch.autograd.grad(loss, apart)
    slopes = slope.split([len(group) for group in groups])
    gradients = workers.map(lambda part, slope: torch.autograd.grad(part, trained, slope), means, slopes)
    for weight, *parts in zip(trained, *gradients, strict=True):
        weight.grad = torch.stack(parts).sum(0)
    return loss.item()


def _groups(spans: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Places of the spans by rising length, in groups of about as many tokens each."""
    by_length = np.argsort(spans, kind="stable")
    tokens = np.cumsum(spans[by_length])
    cuts = np.searchsorted(tokens, np.arange(1, GROUPS) * tokens[-1] / GROUPS)
    return [group for group in np.split(by_length, cuts) if len(group)]


def _means(
    model: LlamaModel, ids: NDArray[np.integer], spans: NDArray[np.int64], group: NDArray[np.int64]
) -> torch.Tensor:
    """Means of the last hidden states of some spans, float32 (n, D)."""
    import torch

    length, starts = spans[group][:, None], (np.cumsum(spans) - spans)[group][:, None]
    at = np.arange(length.max())
    real = at < length
    # Padding comes last, where the real tokens of a decoder do not see it: any id will do.
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
    """At most CURVE_POINTS points: tokens so far, mean loss since the point before."""
    if not losses:
        return []
    parts = np.array_split(np.array(losses), min(CURVE_POINTS, len(losses)))
    return [[int(part[-1, 0]), round(float(part[:, 1].mean()), 5)] for part in parts]
