"""The bootstrap decoder: what transformers makes of it, and its bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dagster_divorder.core.vectors.pool import pool
from dagster_divorder.models import decoder
from dagster_divorder.models.bootstrap import train as train_base
from dagster_divorder.models.checkpoint import embedding_table
from dagster_divorder.models.decoder import make_decoder
from dagster_divorder.models.pretrained import quiet
from tests.tiny_models import TEXTS

WORDS, ROWS, DIM = 257, 260, 24
WEIGHTS = np.linspace(0.1, 2, WORDS, dtype=np.float32)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    train_base(TEXTS, folder, vocab_size=ROWS, dim=DIM)
    return folder


def test_vectors_are_the_weighted_means_of_dampened_rows(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    rng = np.random.default_rng(0)
    texts = [rng.integers(0, WORDS, rng.integers(30, 300)).astype(np.uint16) for _ in range(20)]
    make_decoder(base, tmp_path, WEIGHTS, seed=0)
    with quiet():
        model, loading = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (model.config.num_hidden_layers, model.config.max_position_embeddings) == (1, 8192)
    with torch.inference_mode():
        hidden = [model(input_ids=torch.from_numpy(text.astype(np.int64))[None])[0][0] for text in texts]
    found = torch.stack([states.mean(0) for states in hidden]).numpy()
    rows = embedding_table(base).weights[:WORDS] * WEIGHTS[:, None]
    rows /= np.sqrt(np.square(rows).sum() / (len(embedding_table(base).weights) * DIM))
    rows /= np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + decoder.NORM_EPSILON)
    lengths = np.array([len(text) for text in texts])
    expected = pool(np.concatenate(texts), lengths, rows, np.ones(WORDS, np.float32))
    np.testing.assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), expected, atol=1e-5)


def test_bytes_repeat_and_the_process_is_left_as_it_was(base: Path, tmp_path: Path) -> None:
    written = []
    torch.manual_seed(5)
    expected = torch.rand(3)
    for at, seed in enumerate((3, 3, 4)):
        torch.manual_seed(5)
        (folder := tmp_path / str(at)).mkdir()
        make_decoder(base, folder, WEIGHTS, seed=seed)
        assert torch.equal(torch.rand(3), expected)
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1] != written[2]
    assert sorted(written[0]) == [
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ]
    assert written[0]["tokenizer.json"] == (base / "tokenizer.json").read_bytes()
