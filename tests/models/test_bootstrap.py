"""The bootstrap checkpoint and its decoder: what transformers makes of them, their bytes, small corpora, and clusters
made with it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from dagster_divorder.core.topics.cluster import fit
from dagster_divorder.core.vectors.pool import document_frequency, pool, token_weights
from dagster_divorder.errors import InputError
from dagster_divorder.models import decoder
from dagster_divorder.models.bootstrap import train
from dagster_divorder.models.checkpoint import embedding_table
from dagster_divorder.models.decoder import make_decoder
from dagster_divorder.models.pretrained import quiet
from dagster_divorder.models.tokenize import load_encoder, special_ids

TEXTS = [
    f"{animal} number {n} eats {food} and sleeps in the {place}. "
    for n in range(40)
    for animal, food, place in [("The cat", "fish", "basket"), ("A horse", "fresh hay", "stable")]
]


@pytest.mark.slow
def test_transformers_loads_all_of_it(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    directory, (_, report) = tmp_path, train(TEXTS, tmp_path, vocab_size=400, dim=24)
    assert 257 < report["vocabulary"] <= 400 and 0 < report["rank"] <= report["dim"] == 24
    config = AutoConfig.from_pretrained(directory)
    assert (config.model_type, config.hidden_size, config.vocab_size) == ("llama", 24, report["vocabulary"])
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = "The cat, 漢字 and\r\n 12 horses"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text and ids == load_encoder(directory).encode([text])[0].tolist()
    assert tokenizer.eos_token_id == special_ids(directory)["eos"] == 0
    model, loading = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    np.testing.assert_array_equal(
        model.get_input_embeddings().weight.detach().numpy(), embedding_table(directory).weights
    )


@pytest.mark.slow
@pytest.mark.parametrize("dim", [3, 320])
def test_any_width_makes_a_valid_configuration(tmp_path, dim):
    from transformers import AutoConfig

    train(TEXTS[:4], tmp_path, vocab_size=300, dim=dim)
    assert AutoConfig.from_pretrained(tmp_path).hidden_size == dim


@pytest.mark.slow
def test_the_same_texts_settings_and_seed_give_the_same_bytes_whatever_the_threads(tmp_path):
    script = (
        "import sys\nimport numpy as np\nfrom dagster_divorder.core.vectors.ppmi import token_vectors\n"
        "from dagster_divorder.models.bootstrap import train\n"
        # In float32 the last bits of the eigenvectors hardly ever show; their sum in float64 does.
        "ids = np.random.default_rng(0).zipf(1.1, 200_000) % 1024\n"
        "print(token_vectors(ids, np.full(400, 500), 1024, 64).explained.hex())\n"
        "texts = [f'{n * n} words on {n % 7} ' * (1 + n % 90) + 'word%d ' % (n % 31) * 9 for n in range(400)]\n"
        "train(texts, sys.argv[1], vocab_size=700, dim=40, seed=int(sys.argv[2]))"
    )
    threads = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS")
    said = set()
    for name, count in (("one", "1"), ("two", "2")):
        command = [sys.executable, "-c", script, str(tmp_path / name), "0"]
        variables = {**os.environ, **dict.fromkeys(threads, count), "PYTHONHASHSEED": count}
        said.add(subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE).stdout)
    assert len(said) == 1
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


@pytest.mark.parametrize(
    "texts",
    [["One short document."], TEXTS[:10], ["All alike."] * 20, [""], ["", "x"], ["漢字" * 300]],
    ids=["one", "ten", "alike", "empty", "a letter", "one word"],
)
def test_small_corpora_give_a_usable_model(tmp_path, texts):
    _, report = train(texts, tmp_path, vocab_size=5000, dim=64)
    encoder = load_encoder(tmp_path)
    table = embedding_table(tmp_path, vocabulary=encoder.vocab_size).weights
    assert 257 <= report["vocabulary"] < 5000
    assert table.shape == (report["vocabulary"], 64)
    ids, lengths = encoder.encode(texts)
    weights = token_weights(document_frequency(ids, lengths, len(table)), len(texts), "idf")
    vectors = pool(ids, lengths, table, weights)
    assert np.array_equal(vectors.any(axis=1), lengths > 0)
    clusters = fit(vectors, 30)
    assert 1 <= len(clusters.centroids) <= len(set(texts))


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ([], {}, "0 texts"),
        (["x"], {"vocab_size": 256}, "vocab_size 256"),
        (["x"], {"dim": 0}, "dim 0"),
        (["\ud800"], {}, "lone surrogate"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path, texts, settings, message):
    with pytest.raises(InputError, match=message):
        train(texts, tmp_path, **settings)


WORDS, ROWS, DIM = 257, 260, 24
WEIGHTS = np.linspace(0.1, 2, WORDS, dtype=np.float32)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    train(TEXTS, folder, vocab_size=ROWS, dim=DIM)
    return folder


def test_vectors_are_the_weighted_means_of_dampened_rows(base, tmp_path):
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


def test_bytes_repeat_and_the_process_is_left_as_it_was(base, tmp_path):
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
