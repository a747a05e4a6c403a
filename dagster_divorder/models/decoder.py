"""A small decoder on top of the bootstrap model's token table, so that deep vectors and gradients need no download.

Letters: V vocabulary, D width.

The token table, its rows weighted by idf, becomes the embedding of a Llama of one layer, which adds nothing, and
NORM_EPSILON is far above the square of hidden states, which makes the norms almost linear. So a document's mean
hidden state is about the weighted mean of its tokens' vectors, which is its shallow vector.

Guarantee: an ordinary Hugging Face checkpoint that holds every weight of its architecture; the same bytes for the same
table and seed on one type of machine. Cost: O(V D).
Known weakness: it is no language model: it has never predicted a token. One that is trained for a minute has worse
vectors (docs/decisions/deep-embeddings.md).
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.models.checkpoint import TOKENIZER, embedding_table, read_object, write_checkpoint

NORM_EPSILON = 10.0


def make_decoder(base: Path, directory: Path, weights: NDArray[np.float32], *, seed: int) -> None:
    """Writes a checkpoint into an existing directory. base: directory with the table, float32 (V, D), and its
    tokenizer. weights: float32, at most V, scale its rows."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    table = embedding_table(base).weights
    rows = np.zeros_like(table)
    rows[: len(weights)] = table[: len(weights)] * weights[:, None]
    size = math.sqrt(np.square(rows, dtype=np.float64).mean())
    config = {
        **read_object(base / "config.json"),
        "architectures": ["LlamaModel"],
        "intermediate_size": 2 * table.shape[1],
        "num_hidden_layers": 1,
        "rms_norm_eps": NORM_EPSILON,
    }
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = LlamaModel(LlamaConfig(**config)).float()
        model.embed_tokens.weight.copy_(torch.from_numpy(rows / np.float32(size or 1.0)))
        for layer in model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    for name in (TOKENIZER, "tokenizer_config.json"):
        shutil.copyfile(base / name, directory / name)
    write_checkpoint(directory, config, {key: weight.numpy() for key, weight in model.state_dict().items()})
