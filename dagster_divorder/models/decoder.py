"""A small decoder on top of the bootstrap model's token table, so that deep embeddings need no download.

Letters: V vocabulary, D width, N documents, P pairs of spans, B pairs in a batch.

A Llama of LAYERS layers reads the table, whose rows are scaled by idf and stay as they are. Two spans are cut out of a
document, one from each half; z is the mean of a span's last hidden states, from which the mean of the batch is
taken away before it is scaled to length 1. With s_ij = z_i z'_j / TEMPERATURE the loss is

    -1/2B sum_i [ log softmax_j(s_ij)_i + log softmax_j(s_ji)_i ]

so that two parts of one document come to lie closer than parts of different ones. The layers write nothing before
the first step, and the norm's epsilon is of the order of the hidden states' own square, so that it dampens large
ones and leaves small ones small: training starts from the idf-weighted mean of token vectors, which a norm of its
usual epsilon would destroy.

Guarantee: an ordinary Hugging Face checkpoint (config.json, tokenizer.json, tokenizer_config.json, model.safetensors)
that names every weight of its architecture; the same bytes for the same pairs, table and seed on one type of machine
(THREADS threads, whatever their number otherwise).
Cost: 6 multiplications a token for each of the layers' weights; 2 million tokens about a minute on 2 cores, some 700 MB
besides torch; see docs/decisions/bootstrap-decoder.md.
Sources: Oord, Li and Vinyals 2018 (the loss); Giorgi et al. 2021 (two spans of a document); Zhang, Dauphin and Ma 2019
(layers that begin as nothing).
Known weakness: what two halves of a document share is not always its topic (a signature, a layout, a language).
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import TOKENIZER, WEIGHTS, embedding_table, read_json

if TYPE_CHECKING:
    import torch
    from transformers import LlamaModel

LAYERS = 2
SPAN = 128
"""Tokens of a span at most."""

SHORTEST = 8
"""Tokens of a span at least; documents of fewer than twice as many tell nothing."""

BATCH = 128
TEMPERATURE = 0.1
LEARNING_RATE = 3e-3
WARM_UP = 0.1
NORM_EPSILON = 1.0
EPOCHS = 4
"""A small corpus is read so many times at most."""

THREADS = 2
"""Not the machine's own number, on which the last bits of sums depend."""

GROUPS = 4
"""Spans of a batch run by length in so many groups, as they would be mostly padding in one."""

CURVE_POINTS = 50


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two spans of a document each, in the order of training.

    document int64 (P,) is the document's place among those planned; first and second int64 (P,) are where in the
    document the spans begin; length int64 (P,) is that of each of the two; batch_starts int64 (batches + 1,); the number of
    times (epochs) that the documents are read.
    """

    document: NDArray[np.int64]
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    length: NDArray[np.int64]
    batch_starts: NDArray[np.int64]
    epochs: int

    @property
    def starts(self) -> NDArray[np.int64]:
        """int64 (P + 1,): where the two spans of a pair, one behind the other, begin among all tokens."""
        return np.concatenate([[0], np.cumsum(2 * self.length)])


def plan(lengths: NDArray[np.int64], tokens: int, *, seed: int = 0) -> Pairs:
    """Pairs of some `tokens` tokens in all out of documents of lengths (N,), of which the first ones are taken.

    Fewer where EPOCHS times the whole corpus is less, and none where fewer than two documents are long enough. A document
    is in a batch once at most.
    """
    length = np.minimum(lengths // 2, SPAN)
    documents = np.flatnonzero(length >= SHORTEST)
    total = np.cumsum(2 * length[documents])
    documents = documents[: np.searchsorted(total, tokens, side="right")]
    if len(documents) < 2:
        return Pairs(*(np.zeros(0, np.int64),) * 4, batch_starts=np.zeros(1, np.int64), epochs=0)
    epochs = min(EPOCHS, max(1, tokens // int(total[len(documents) - 1])))

    rng = np.random.default_rng(seed)
    document = np.concatenate([rng.permutation(documents) for _ in range(epochs)])
    places = rng.random((2, len(document)))
    span, whole = length[document], lengths[document]
    half = whole // 2
    batches = -(-len(documents) // BATCH)
    ends = [
        len(documents) * (epoch * batches + at) // batches
        for epoch in range(epochs)
        for at in range(1, batches + 1)
    ]
    return Pairs(
        document=document,
        first=(places[0] * (half - span + 1)).astype(np.int64),
        second=half + (places[1] * (whole - half - span + 1)).astype(np.int64),
        length=span,
        batch_starts=np.array([0, *ends], np.int64),
        epochs=epochs,
    )


def train(
    base: Path | str,
    directory: Path | str,
    weights: NDArray[np.float32],
    pairs: Pairs,
    ids: NDArray[np.integer],
    *,
    seed: int = 0,
    advance: Callable[[int], object] = lambda tokens: None,
) -> dict[str, Any]:
    """Trains on pairs and writes a checkpoint into `directory`, made where it is missing.

    `base` holds the table, float32 (V, D), and its tokenizer; weights float32, at most V of them, scale its rows; ids are the
    tokens of all pairs, laid out as `pairs.starts` says; `advance` is told the tokens of every batch. Without pairs the
    checkpoint's vectors are the weighted means of the table's rows, dampened.

    Returns:
        layers, width, parameters (of the layers), tokens, pairs, epochs, batches and curve: a list of [tokens so far, mean
        loss since the point before].

    Raises:
        InputError: ids do not fit the pairs, or more weights than rows.
    """
    base, directory = Path(base), Path(directory)
    table = embedding_table(base).weights
    if len(weights) > len(table) or len(ids) != pairs.starts[-1] or (len(ids) and ids.max() >= len(table)):
        raise InputError(
            f"{len(weights)} weights, {len(ids)} ids of {pairs.starts[-1]} and a table of {len(table)} rows; "
            "expected no more weights than rows, the ids of all pairs, and a row for each"
        )
    config = _config(base, table.shape[1])
    with _fixed_threads(), _fixed_random(seed):
        table = _even(_weighted(table, weights), pairs, ids)
        model = _model(table / np.float32(_size(table) or 1.0), config)
        curve = _fit(model, pairs, ids, advance)
    directory.mkdir(parents=True, exist_ok=True)
    _save(model, config, base, directory)
    return {
        "layers": LAYERS,
        "width": table.shape[1],
        "parameters": sum(weight.numel() for weight in model.layers.parameters()),
        "tokens": len(ids),
        "pairs": len(pairs.document),
        "epochs": pairs.epochs,
        "batches": len(pairs.batch_starts) - 1,
        "curve": curve,
    }


def _weighted(table: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """The table, its rows scaled by weights; rows without a weight are zero."""
    scaled = np.zeros_like(table)
    scaled[: len(weights)] = table[: len(weights)] * weights[:, None]
    return scaled


def _size(table: NDArray[np.float32]) -> float:
    return math.sqrt(np.square(table, dtype=np.float64).mean())


def _even(table: NDArray[np.float32], pairs: Pairs, ids: NDArray[np.integer]) -> NDArray[np.float32]:
    """The table in coordinates in which two spans of a document differ equally in all directions."""
    from sklearn.covariance import ledoit_wolf
    from threadpoolctl import threadpool_limits

    if not len(pairs.document):
        return table
    spans = np.repeat(pairs.length, 2)
    starts = np.cumsum(spans) - spans
    means = np.empty((len(spans), table.shape[1]), np.float32)
    for at in range(0, len(spans), 1024):
        part = starts[at : at + 1024]
        end = part[-1] + spans[at : at + 1024][-1]
        means[at : at + 1024] = np.add.reduceat(table[ids[part[0] : end]], part - part[0])
    length = np.linalg.norm(means, axis=1, keepdims=True)
    means = np.divide(means, length, out=np.zeros_like(means), where=length > 0)
    with threadpool_limits(limits=1):
        noise, shrink = ledoit_wolf((means[::2] - means[1::2]).astype(np.float64), assume_centered=True)
        squares, directions = np.linalg.eigh(noise)
        if VERBOSE: print("shrink", shrink, np.round(squares[[0,1,5,20,60,100,-1]]/squares.mean(),4))
        return (table @ (directions * squares**POWER @ directions.T)).astype(np.float32)
POWER=-.5
VERBOSE=False

def _config(base: Path, width: int) -> dict[str, Any]:
    """config.json: that of the table, with layers."""
    return {
        **read_json(base / "config.json"),
        "architectures": ["LlamaModel"],
        "intermediate_size": 2 * width,
        "num_hidden_layers": LAYERS,
        "rms_norm_eps": NORM_EPSILON,
    }


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
    model: LlamaModel, pairs: Pairs, ids: NDArray[np.integer], advance: Callable[[int], object]
) -> list[list[float]]:
    import torch

    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    starts = pairs.starts
    total = int(starts[-1])
    losses: list[tuple[int, float]] = []
    for first, last in zip(pairs.batch_starts[:-1].tolist(), pairs.batch_starts[1:].tolist(), strict=True):
        done = int(starts[last])
        # Up over the first tenth of the tokens, then down to nothing.
        middle = (starts[first] + done) / 2 / total
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(middle / WARM_UP, (1 - middle) / (1 - WARM_UP))
        loss = _loss(_means(model, ids[starts[first] : done], pairs.length[first:last]))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        losses.append((done, loss.item()))
        advance(done - int(starts[first]))
    return _curve(losses)


def _means(model: LlamaModel, ids: NDArray[np.integer], length: NDArray[np.int64]) -> torch.Tensor:
    """Means of the last hidden states of both spans of the pairs, (2, B, D)."""
    import torch

    spans = np.repeat(length, 2)
    starts = np.cumsum(spans) - spans
    by_length = np.argsort(spans, kind="stable")
    parts = []
    for group in np.array_split(by_length, min(GROUPS, len(length))):
        at = np.arange(spans[group].max())
        real = at < spans[group][:, None]
        # Padding comes last, where a decoder's real tokens do not see it: any id will do.
        tokens = ids[np.where(real, starts[group][:, None] + at, 0)].astype(np.int64)
        hidden = model(input_ids=torch.from_numpy(tokens)).last_hidden_state
        share = torch.from_numpy((real / spans[group][:, None]).astype(np.float32))
        parts.append((share[:, None] @ hidden)[:, 0])
    back = torch.from_numpy(np.argsort(by_length))
    return torch.cat(parts)[back].view(len(length), 2, -1).transpose(0, 1)


def _loss(means: torch.Tensor) -> torch.Tensor:
    import torch
    from torch.nn.functional import cross_entropy, normalize

    first, second = normalize(means - means.mean((0, 1)), dim=-1)
    scores = first @ second.T / TEMPERATURE
    same = torch.arange(len(first))
    return (cross_entropy(scores, same) + cross_entropy(scores.T, same)) / 2


def _curve(losses: list[tuple[int, float]]) -> list[list[float]]:
    """At most CURVE_POINTS points: tokens so far, mean loss since the point before."""
    parts = np.array_split(
        np.array(losses, np.float64).reshape(-1, 2), min(CURVE_POINTS, max(1, len(losses)))
    )
    return [[int(part[-1, 0]), round(float(part[:, 1].mean()), 5)] for part in parts if len(part)]


def _save(model: LlamaModel, config: dict[str, Any], base: Path, directory: Path) -> None:
    from safetensors.numpy import save

    for name in (TOKENIZER, "tokenizer_config.json"):
        shutil.copyfile(base / name, directory / name)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {key: weight.numpy() for key, weight in model.state_dict().items()}
    (directory / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))


@contextmanager
def _fixed_threads() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _fixed_random(seed: int) -> Iterator[None]:
    """torch's own generator, from `seed`, and afterwards as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
