"""A small decoder on top of the bootstrap model's token table, so that deep embeddings need no download.

Letters: V vocabulary, D width, P pairs of spans.

The token table, its rows weighted by idf, is turned into coordinates of what the two halves of a document share, its
topic. x and x' are vectors of two halves: x = m + y + e, where y ~ N(0, S) is shared and e ~ N(0, E) is the half's own.

    E = cov(x - x') / 2, shrunk        S = (cov(x, x') + cov(x', x)) / 2
    E^-1/2 S E^-1/2 = U diag(s) U'     map = E^-1/2 U diag(s / (1 + s))

(x - m) map is the expectation of y given x, in coordinates in which E is the identity. A Llama of LAYERS layers stands
on the table; its layers add nothing, and NORM_EPSILON is far above the square of hidden states, which makes the norms
almost linear. So a document's mean hidden state is about the weighted mean of its tokens' vectors.

Guarantee: an ordinary Hugging Face checkpoint that holds every weight of its architecture; the same bytes for the same
means, table and seed on one type of machine. Cost: O(V D^2 + P D^2 + D^3).
Sources: Ioffe 2006 and Prince and Elder 2007 (probabilistic linear discriminant analysis); Ledoit and Wolf 2004 (the
shrinkage of E).
Known weakness: the halves of a document may share other things than its topic (a signature, a layout, a language). It
is no language model: it has never predicted a token. Measured: docs/decisions/deep-embeddings.md.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.models.checkpoint import TOKENIZER, embedding_table, read_json, write_checkpoint

LAYERS = 2
NORM_EPSILON = 10.0
FLOOR = 1e-9
"""Eigenvalues of E below this share of the largest are rounding noise."""


def make_decoder(
    base: Path, directory: Path, weights: NDArray[np.float32], means: NDArray[np.float32], *, seed: int
) -> None:
    """Writes a checkpoint into an existing directory.

    base: directory with the table, float32 (V, D), and its tokenizer. weights: float32, at most V, scale its rows.
    means: float32 (2, P, D), vectors of the two spans of each document (`core.vectors.pool`).
    """
    import torch
    from transformers import LlamaConfig, LlamaModel

    table = embedding_table(base).weights
    topical = np.zeros_like(table)
    topical[: len(weights)] = (table[: len(weights)] * weights[:, None]) @ topic_map(*means)
    size = math.sqrt(np.square(topical, dtype=np.float64).mean())
    config = {
        **read_json(base / "config.json"),
        "architectures": ["LlamaModel"],
        "intermediate_size": 2 * table.shape[1],
        "num_hidden_layers": LAYERS,
        "rms_norm_eps": NORM_EPSILON,
    }
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaModel(LlamaConfig(**config)).float()
        model.embed_tokens.weight.copy_(torch.from_numpy(topical / np.float32(size or 1.0)))
        for layer in model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    for name in (TOKENIZER, "tokenizer_config.json"):
        shutil.copyfile(base / name, directory / name)
    write_checkpoint(directory, config, {key: weight.numpy() for key, weight in model.state_dict().items()})


def topic_map(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """The map, float64 (D, D), columns from the most shared direction to the least.

    s is shrunk towards its mean with the weight of D pairs, as few pairs estimate it badly. The map is the identity if
    there are fewer than two pairs, or if the parts share nothing or are all equal.
    """
    from sklearn.covariance import ledoit_wolf
    from threadpoolctl import threadpool_limits

    pairs, dims = first.shape
    identity = np.eye(dims)
    if pairs < 2:
        return identity
    mean = (first.mean(0, dtype=np.float64) + second.mean(0, dtype=np.float64)) / 2
    x, y = first - mean, second - mean
    with threadpool_limits(limits=1):
        own, axes = np.linalg.eigh(ledoit_wolf(x - y, assume_centered=True)[0] / 2)
        if own[-1] <= 0:
            return identity
        white = axes * np.maximum(own, FLOOR * own[-1]) ** -0.5 @ axes.T
        cross = white @ (x.T @ y) @ white / pairs
        shared, directions = np.linalg.eigh((cross + cross.T) / 2)
        shared, directions = np.maximum(shared[::-1], 0.0), directions[:, ::-1]
        shared = (pairs * shared + dims * shared.mean()) / (pairs + dims)
        if not shared.any():
            return identity
        return np.asarray(white @ directions * (shared / (1 + shared)))
