"""The bootstrap decoder: what it is trained on, what transformers makes of it, its bytes, and what it learns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from dagster_divorder.core.topics.cluster import assign, fit
from dagster_divorder.core.vectors.pool import pool
from dagster_divorder.errors import InputError
from dagster_divorder.models import decoder
from dagster_divorder.models.bootstrap import train as train_base
from dagster_divorder.models.checkpoint import embedding_table
from dagster_divorder.models.decoder import BATCH, EPOCHS, SHORTEST, SPAN, Pairs, plan, train
from dagster_divorder.models.spec import quiet
from dagster_divorder.models.tokenize import load_encoder
from tests.conftest import examples

TOPICS, TOPIC_WORDS, WORDS = 4, 40, 257
"""Words of each topic, then words of none."""
ROWS, DIM = 260, 24


def planted_corpus(documents: int, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """Documents of 30 to 300 words, a fifth of them from their topic; in each quarter of a document some word of no
    topic comes again and again."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, TOPICS, documents)
    texts = []
    for topic in topics:
        words = rng.integers(TOPICS * TOPIC_WORDS, WORDS, rng.integers(30, 300))
        for quarter in np.array_split(words, 4):
            quarter[rng.random(len(quarter)) < 0.5] = rng.integers(TOPICS * TOPIC_WORDS, WORDS)
        own = rng.random(len(words)) < 0.2
        words[own] = rng.integers(topic * TOPIC_WORDS, (topic + 1) * TOPIC_WORDS, own.sum())
        texts.append(words.astype(np.uint16))
    return texts, topics


def tokens_of(pairs: Pairs, texts: list[np.ndarray]) -> np.ndarray:
    spans = [
        texts[document][begin : begin + length]
        for document, begins, length in zip(pairs.document, pairs.begin, pairs.length, strict=True)
        for begin in begins
    ]
    return np.concatenate([np.zeros(0, np.uint16), *spans])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in which topics lie in some columns, and words of no topic, three times as strongly, in others."""
    folder = tmp_path_factory.mktemp("base")
    train_base(["all alike"], folder, vocab_size=ROWS, dim=DIM)
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 0.02, (ROWS, DIM))
    words = np.arange(TOPICS * TOPIC_WORDS)
    rows[words, words // TOPIC_WORDS] += 0.3
    rows[len(words) :, TOPICS : TOPICS + 4] += rng.normal(0, 0.45, (ROWS - len(words), 4))
    weights = {
        "model.embed_tokens.weight": rows.astype(np.float32),
        "model.norm.weight": np.ones(DIM, np.float32),
    }
    (folder / "model.safetensors").write_bytes(save(weights))
    return folder


Trained = tuple[Path, dict[str, Any], list[np.ndarray], np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    texts, topics = planted_corpus(400)
    folder = tmp_path_factory.mktemp("decoder")
    pairs = plan(np.array([len(text) for text in texts]), 80_000)
    weights = np.ones(WORDS, np.float32)
    return folder, train(base, folder, weights, pairs, tokens_of(pairs, texts)), texts, topics, weights


def load(folder: Path) -> torch.nn.Module:
    from transformers import AutoModel

    with quiet():
        model, loading = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


def vectors_of(model: torch.nn.Module, texts: list[np.ndarray]) -> np.ndarray:
    with torch.inference_mode():
        means = [
            model(input_ids=torch.from_numpy(text.astype(np.int64))[None]).last_hidden_state[0].mean(0)
            for text in texts
        ]
    vectors = torch.stack(means).numpy()
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.integers(0, 5 * SPAN), max_size=3 * BATCH),
    st.integers(0, 1 << 17),
    st.integers(0, 1 << 40),
)
def test_pairs_are_disjoint_spans_of_the_first_documents(lengths: list[int], tokens: int, seed: int) -> None:
    lengths_array = np.array(lengths, np.int64)
    pairs = plan(lengths_array, tokens, seed=seed)
    count = len(pairs.document)
    assert 2 * pairs.length.sum() == pairs.span_starts[-1] <= tokens
    assert len(pairs.span_starts) == 2 * count + 1
    assert (pairs.batch_starts[0], pairs.batch_starts[-1]) == (0, count)
    half = lengths_array[pairs.document] // 2
    np.testing.assert_array_equal(pairs.length, np.minimum(half, SPAN))
    assert (pairs.length >= SHORTEST).all()
    assert (pairs.begin >= 0).all()
    assert (pairs.begin[:, 0] + pairs.length <= half).all()
    assert (pairs.begin[:, 1] >= half).all()
    assert (pairs.begin[:, 1] + pairs.length <= lengths_array[pairs.document]).all()
    long_enough = np.flatnonzero(lengths_array >= 2 * SHORTEST)
    if not count:
        needed = 2 * np.minimum(lengths_array[long_enough[:2]] // 2, SPAN).sum()
        assert len(long_enough) < 2 or needed > tokens
        return
    # All of them once in every epoch, a batch in one epoch.
    once = count // pairs.epochs
    assert 1 <= pairs.epochs <= EPOCHS
    for epoch in range(pairs.epochs):
        documents = pairs.document[epoch * once : (epoch + 1) * once]
        np.testing.assert_array_equal(np.sort(documents), long_enough[:once])
        assert epoch * once in pairs.batch_starts
    sizes = np.diff(pairs.batch_starts)
    assert 1 < sizes.min() <= sizes.max() <= min(BATCH, sizes.min() + 1)
    # Another document or another epoch would be too many tokens.
    one_epoch = 2 * pairs.length[:once].sum()
    if once < len(long_enough):
        assert one_epoch + 2 * min(lengths_array[long_enough[once]] // 2, SPAN) > tokens
    assert pairs.epochs == EPOCHS or pairs.span_starts[-1] + one_epoch > tokens


@pytest.mark.slow
def test_transformers_loads_all_of_it(trained: Trained, base: Path) -> None:
    folder, report, texts, *_ = trained
    model = load(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ]
    assert model.config.num_hidden_layers == report["layers"] == 2
    assert model.config.max_position_embeddings == 8192
    assert sum(weight.numel() for weight in model.layers.parameters()) == report["parameters"]
    assert (folder / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert np.isfinite(vectors_of(model, texts[:5])).all()
    rows = embedding_table(folder).weights
    assert np.square(rows).mean() == pytest.approx(1.0, rel=1e-5)
    assert not rows[WORDS:].any()  # without weight


@pytest.mark.slow
def test_the_report_tells_how_training_went(trained: Trained) -> None:
    _, report, texts, *_ = trained
    curve = report["loss"]
    assert report["documents"] == len(texts)
    assert (report["epochs"], report["batches"]) == (1, -(-len(texts) // BATCH))
    assert len(curve) <= decoder.CURVE_POINTS
    assert [tokens for tokens, _ in curve] == sorted({tokens for tokens, _ in curve})
    assert curve[-1][0] == report["tokens"]


@pytest.mark.slow
def test_topics_come_out_better_than_from_the_mean_of_the_table(trained: Trained, base: Path) -> None:
    from sklearn.metrics import normalized_mutual_info_score

    folder, _, _, _, weights = trained
    texts, topics = planted_corpus(600, seed=1)

    def agreement(vectors: np.ndarray) -> float:
        return normalized_mutual_info_score(topics, assign(vectors, fit(vectors, TOPICS))[0])

    lengths = np.array([len(text) for text in texts])
    before = agreement(pool(np.concatenate(texts), lengths, embedding_table(base).weights, weights))
    after = agreement(vectors_of(load(folder), texts))
    assert after > 0.9 > 0.5 > before


def test_without_pairs_vectors_are_the_weighted_means_of_dampened_rows(base: Path, tmp_path: Path) -> None:
    texts, _ = planted_corpus(20)
    weights = np.linspace(0.1, 2, WORDS, dtype=np.float32)
    lengths = np.array([len(text) for text in texts])
    report = train(base, tmp_path, weights, plan(lengths, 0), np.zeros(0, np.uint16))
    assert (report["tokens"], report["documents"], report["batches"], report["loss"]) == (0, 0, 0, [])
    rows = embedding_table(base).weights[:WORDS] * weights[:, None]
    rows /= np.sqrt(np.square(rows).sum() / (ROWS * DIM))
    rows /= np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + decoder.NORM_EPSILON)
    expected = pool(np.concatenate(texts), lengths, rows, np.ones(WORDS, np.float32))
    np.testing.assert_allclose(vectors_of(load(tmp_path), texts), expected, atol=1e-5)


PROGRAM = """
import sys, numpy as np, torch
from dagster_divorder.models.decoder import train
from tests.models.test_decoder import small_training
torch.rand(3)
train(sys.argv[1], sys.argv[2], *small_training(), seed=3, threads=3)
"""


def small_training() -> tuple[np.ndarray, Pairs, np.ndarray]:
    texts, _ = planted_corpus(120)
    pairs = plan(np.array([len(text) for text in texts]), 20_000, seed=3)
    return np.ones(WORDS, np.float32), pairs, tokens_of(pairs, texts)


@pytest.mark.slow
def test_bytes_repeat_in_another_process_on_another_number_of_threads(base: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    train(base, here, *small_training(), seed=3)
    subprocess.run([sys.executable, "-c", PROGRAM, str(base), str(there)], check=True)
    files = {path.name: path.read_bytes() for path in here.iterdir()}
    assert files == {path.name: path.read_bytes() for path in there.iterdir()}
    train(base, there, *small_training(), seed=4)
    assert files["model.safetensors"] != (there / "model.safetensors").read_bytes()


def test_the_process_is_left_as_it_was(base: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    texts, _ = planted_corpus(8)
    pairs = plan(np.array([len(text) for text in texts]), 2_000)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    torch.set_num_threads(3)
    try:
        train(base, tmp_path, np.ones(WORDS, np.float32), pairs, tokens_of(pairs, texts), seed=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 5, 130])
def test_any_width_and_two_short_documents_will_do(dim: int, tmp_path: Path) -> None:
    texts = ["a bee sees a sea of trees", "nine mice like rice twice a night"]
    train_base(texts, tmp_path / "base", vocab_size=257, dim=dim)
    documents = [load_encoder(tmp_path / "base").encode([text])[0] for text in texts]
    pairs = plan(np.array([len(document) for document in documents]), 1_000)
    assert len(pairs.document) == 2 * EPOCHS
    train(tmp_path / "base", tmp_path / "out", np.ones(257, np.float32), pairs, tokens_of(pairs, documents))
    vectors = vectors_of(load(tmp_path / "out"), documents)
    assert vectors.shape == (2, dim)
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize(
    ("weights", "ids", "message"),
    [
        (np.ones(100_000), np.zeros(64), "more weights than rows"),
        (np.ones(WORDS), np.zeros(63), "expected the same number"),
        (np.ones(WORDS), np.full(64, WORDS), f"outside a vocabulary of {WORDS}"),
    ],
)
def test_what_does_not_fit_is_refused(
    weights: np.ndarray, ids: np.ndarray, message: str, base: Path, tmp_path: Path
) -> None:
    pairs = plan(np.array([32, 32]), 64)
    with pytest.raises(InputError, match=message):
        train(base, tmp_path / "out", weights.astype(np.float32), pairs, ids.astype(np.uint32))
    assert not (tmp_path / "out").exists()
