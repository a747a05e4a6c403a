"""The bootstrap decoder: what transformers makes of it, its bytes, and the topics that come out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from dagster_divorder.core.topics.cluster import assign, fit
from dagster_divorder.core.vectors.pool import pool
from dagster_divorder.models import decoder
from dagster_divorder.models.bootstrap import train as train_base
from dagster_divorder.models.checkpoint import embedding_table
from dagster_divorder.models.decoder import make_decoder, topic_map
from dagster_divorder.models.pretrained import quiet
from tests.conftest import examples

TOPICS, TOPIC_WORDS, WORDS = 4, 40, 257
"""Words of each topic, then words of none."""
ROWS, DIM = 260, 24
ONES = np.ones(WORDS, np.float32)


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


def pooled(base: Path, texts: list[np.ndarray]) -> np.ndarray:
    lengths = np.array([len(text) for text in texts])
    return pool(np.concatenate(texts), lengths, embedding_table(base).weights, ONES)


def halves(base: Path, texts: list[np.ndarray]) -> np.ndarray:
    parts = [[text[: len(text) // 2] for text in texts], [text[len(text) // 2 :] for text in texts]]
    return np.stack([pooled(base, part) for part in parts])


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


def test_topics_come_out_better_than_from_the_mean_of_the_table(base: Path, tmp_path: Path) -> None:
    from sklearn.metrics import normalized_mutual_info_score

    make_decoder(base, tmp_path, ONES, halves(base, planted_corpus(400)[0]), seed=0)
    texts, topics = planted_corpus(600, seed=1)

    def agreement(vectors: np.ndarray) -> float:
        return normalized_mutual_info_score(topics, assign(vectors, fit(vectors, TOPICS))[0])

    model = load(tmp_path)
    assert agreement(vectors_of(model, texts)) > 0.9 > 0.5 > agreement(pooled(base, texts))
    assert model.config.num_hidden_layers == 2
    assert model.config.max_position_embeddings == 8192
    assert (tmp_path / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    rows = embedding_table(tmp_path).weights
    assert np.square(rows).mean() == pytest.approx(1.0, rel=1e-5)
    assert not rows[WORDS:].any()  # without weight


def test_without_documents_vectors_are_the_weighted_means_of_dampened_rows(
    base: Path, tmp_path: Path
) -> None:
    texts, _ = planted_corpus(20)
    weights = np.linspace(0.1, 2, WORDS, dtype=np.float32)
    make_decoder(base, tmp_path, weights, np.zeros((2, 0, DIM), np.float32), seed=0)
    rows = embedding_table(base).weights[:WORDS] * weights[:, None]
    rows /= np.sqrt(np.square(rows).sum() / (ROWS * DIM))
    rows /= np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + decoder.NORM_EPSILON)
    expected = pool(np.concatenate(texts), np.array([len(text) for text in texts]), rows, ONES)
    np.testing.assert_allclose(vectors_of(load(tmp_path), texts), expected, atol=1e-5)


def test_bytes_repeat_and_the_process_is_left_as_it_was(base: Path, tmp_path: Path) -> None:
    means, written = halves(base, planted_corpus(50)[0]), []
    torch.manual_seed(5)
    expected = torch.rand(3)
    for at, seed in enumerate((3, 3, 4)):
        torch.manual_seed(5)
        (folder := tmp_path / str(at)).mkdir()
        make_decoder(base, folder, ONES, means, seed=seed)
        assert torch.equal(torch.rand(3), expected)
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert written[0] == written[1] != written[2]
    assert sorted(written[0]) == [
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ]


SHARED_DIMS = 6


def halves_of_a_topic(pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of x = m + y + e, and the covariances S of y and E of e."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(SHARED_DIMS, 3))
    own = rng.normal(size=(SHARED_DIMS, SHARED_DIMS))
    topic = rng.normal(size=(pairs, 3)) @ mix.T + 5.0
    noise = rng.normal(size=(2, pairs, SHARED_DIMS)) @ own.T
    return topic + noise[0], topic + noise[1], mix @ mix.T, own @ own.T


def test_it_is_the_expectation_of_what_is_shared() -> None:
    first, second, shared, own = halves_of_a_topic(200_000)
    found = topic_map(first, second)
    # A row vector x - m times this is the expectation of y; distances are those of coordinates in which E is one.
    expectation = np.linalg.solve(shared + own, shared)
    expected = expectation @ np.linalg.inv(own) @ expectation.T
    np.testing.assert_allclose(found @ found.T, expected, atol=0.03 * np.abs(expected).max())


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 40), st.integers(0, 2**32), st.sampled_from([1.0, 1e-6, 1e6]))
def test_few_pairs_give_a_usable_map_whichever_part_comes_first(pairs: int, seed: int, scale: float) -> None:
    first, second = (scale * part for part in halves_of_a_topic(pairs, seed)[:2])
    found, turned = topic_map(first, second), topic_map(second, first)
    assert np.isfinite(found).all()
    assert np.linalg.matrix_rank(found) == SHARED_DIMS
    np.testing.assert_allclose(
        found @ found.T, turned @ turned.T, rtol=1e-6, atol=1e-9 * np.square(found).max()
    )


@pytest.mark.parametrize(
    "part", [np.zeros((0, 3)), np.ones((1, 3)), np.ones((9, 3)), np.eye(3)[[0, 1, 2, 0, 1, 2]]]
)
def test_parts_that_do_not_differ_teach_nothing(part: np.ndarray) -> None:
    np.testing.assert_array_equal(topic_map(part, part), np.eye(3))
