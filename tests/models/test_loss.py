"""Losses of documents: those of transformers for one document at a time, whatever the batches, windows and memory."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dagster_divorder.errors import InputError
from dagster_divorder.models import loss as module
from dagster_divorder.models.batches import Budget
from dagster_divorder.models.embed import CUT, Embedder
from dagster_divorder.models.loss import LossModel, check_causal, load
from dagster_divorder.models.spec import EmbeddingSpec, quiet, read_spec
from tests.tiny_models import (
    BOS,
    CAUSAL,
    CONTEXT,
    Folders,
    causal_checkpoints,
    save_model,
    save_tokenizer,
    write_json,
)

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = np.array([5, CONTEXT, 1, 0, 31, 2, 30, 17])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return causal_checkpoints(tmp_path_factory.mktemp("models"))


def spec_of(folder: Path, **changes: Any) -> EmbeddingSpec:
    spec = read_spec(folder, pooling="last", dtype="float32")
    changes = {"window": min(spec.window, CONTEXT), "suffix": (), **changes}
    return dataclasses.replace(spec, **changes)


def draw_ids(lengths: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 400, lengths.sum()).astype(np.uint16)


def losses_of(model: LossModel, ids: np.ndarray, lengths: np.ndarray, **options: Any) -> np.ndarray:
    counted = options.pop("counted", None)
    embedder = Embedder(model, Budget(options.pop("budget", 200)), **options)
    nats, number = embedder.embed(ids, lengths, counted=counted).vectors.T
    return np.divide(nats, number, out=np.full(len(nats), np.nan, np.float32), where=number > 0)


def transformers_losses(
    folder: Path, ids: np.ndarray, lengths: np.ndarray, prefix: tuple[int, ...] = ()
) -> np.ndarray:
    """The loss that transformers gives for each document alone."""
    from transformers import AutoModelForCausalLM

    with quiet(), torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        ends = np.cumsum(lengths)
        rows = [
            [*prefix, *ids[end - length : end].tolist()] for end, length in zip(ends, lengths, strict=True)
        ]
        tokens = [torch.tensor([row]) for row in rows]
        return np.array(
            [
                float(model(input_ids=each, labels=each).loss) if each.shape[1] > 1 else np.nan
                for each in tokens
            ]
        )


@pytest.mark.parametrize("kind", [*CAUSAL, "bootstrap"])
def test_losses_are_those_of_transformers(checkpoints: Folders, kind: str) -> None:
    folder = checkpoints(kind)
    ids = draw_ids(LENGTHS)
    losses = losses_of(load(folder, spec_of(folder), setting="deep.model"), ids, LENGTHS)
    expected = transformers_losses(folder, ids, LENGTHS)
    assert np.isnan(expected).tolist() == (LENGTHS < 2).tolist()
    assert np.allclose(losses, expected, rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Gemma2", {"head_dim": 8, "final_logit_softcapping": 2.0}),
        ("Granite", {"logits_scaling": 8.0}),
        ("Cohere", {"logit_scale": 0.25}),
    ],
)
def test_logits_that_a_model_scales_or_caps_are_its_own(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    import transformers

    sizes = {"vocab_size": 600, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.3}
    config = getattr(transformers, f"{kind}Config")(**sizes, **heads, **special, **changes)
    torch.manual_seed(0)
    with quiet():
        getattr(transformers, f"{kind}ForCausalLM")(config).eval().save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    ids = draw_ids(LENGTHS)
    losses = losses_of(load(tmp_path, spec_of(tmp_path), setting="deep.model"), ids, LENGTHS)
    assert np.allclose(losses, transformers_losses(tmp_path, ids, LENGTHS), rtol=0, atol=1e-4, equal_nan=True)


def test_the_first_token_counts_after_one_of_the_tokenizer(tmp_path: Path) -> None:
    folder = save_model(save_tokenizer(tmp_path, before=(BOS,)), tie_word_embeddings=True)
    spec = spec_of(folder)
    assert len(spec.prefix) == 1
    lengths = np.minimum(LENGTHS, CONTEXT - 1)
    ids = draw_ids(lengths)
    losses = losses_of(load(folder, spec, setting="deep.model"), ids, lengths)
    assert np.isnan(losses).tolist() == (lengths == 0).tolist()
    expected = transformers_losses(folder, ids, lengths, spec.prefix)
    assert np.allclose(losses, expected, rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("budget", [1, 60, 10_000])
def test_batches_lanes_and_tiles_of_the_vocabulary_change_nothing(
    checkpoints: Folders, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints("llama")
    model = load(folder, spec_of(folder), setting="deep.model")
    ids = draw_ids(LENGTHS)
    expected = losses_of(model, ids, LENGTHS)
    monkeypatch.setitem(module.LOGITS, "cpu", 600 * 7)
    losses = losses_of(model, ids, LENGTHS, budget=budget, lanes=2)
    assert np.allclose(losses, expected, rtol=1e-5, equal_nan=True)


def test_a_long_document_in_windows_counts_each_token_once_after_a_quarter_of_context(
    checkpoints: Folders,
) -> None:
    folder, room = checkpoints("llama"), 16
    model = load(folder, spec_of(folder, window=room), setting="deep.model")
    lengths = np.array([41, 16, 17, 3])
    ids = draw_ids(lengths)
    losses = losses_of(model, ids, lengths, chunk=True)
    plain, ends = transformers_model(folder), np.cumsum(lengths)
    for document, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        tokens = ids[end - length : end].astype(np.int64)
        nats = [nats_of(plain, tokens[:room], 1)]
        nats += [nats_of(plain, tokens[first : first + room], 4) for first in range(12, length - 4, 12)]
        assert sum(map(len, nats)) == length - 1
        assert losses[document] == pytest.approx(np.concatenate(nats).mean(), abs=1e-4)
    first = losses_of(model, ids, lengths)
    assert first[0] == pytest.approx(nats_of(plain, ids[:room].astype(np.int64), 1).mean(), abs=1e-4)


def transformers_model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    with quiet():
        return AutoModelForCausalLM.from_pretrained(folder).eval()


def nats_of(model: Any, tokens: np.ndarray, first: int) -> np.ndarray:
    """Nats of each token of a window from `first` on."""
    with torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(tokens)[None]).logits[0].double()
    return -logits.log_softmax(1)[np.arange(first - 1, len(tokens) - 1), tokens[first:]].numpy()


def test_only_tokens_that_count_do(checkpoints: Folders) -> None:
    folder = checkpoints("llama")
    model, plain = load(folder, spec_of(folder), setting="deep.model"), transformers_model(folder)
    lengths = np.array([20, 30])
    ids, counted = draw_ids(lengths), np.zeros(50, bool)
    counted[[0, 3, 4, 11]] = True
    losses = losses_of(model, ids, lengths, counted=counted)
    assert losses[0] == pytest.approx(
        nats_of(plain, ids[:20].astype(np.int64), 1)[[2, 3, 10]].mean(), abs=1e-4
    )
    assert np.isnan(losses[1])


def test_a_window_that_memory_does_not_hold_is_read_in_parts(checkpoints: Folders) -> None:
    folder = checkpoints("llama")
    model, plain = load(folder, spec_of(folder), setting="deep.model"), transformers_model(folder)
    lengths = np.array([40])
    ids = draw_ids(lengths)
    embedded = Embedder(model, Budget(20), hard_limit=20).embed(ids, lengths)
    assert embedded.flagged.tolist() == [CUT]
    halves = [nats_of(plain, part.astype(np.int64), 1) for part in (ids[:20], ids[20:])]
    nats, number = embedded.vectors[0]
    assert nats / number == pytest.approx(np.concatenate(halves).mean(), abs=1e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta", "t5"])
def test_models_that_predict_no_next_token_are_refused_with_the_remedy(kind: str, tmp_path: Path) -> None:
    folder = save_model(save_tokenizer(tmp_path), kind)
    with pytest.raises(InputError, match=r"set deep\.model to (one that does|a causal language model)"):
        load(folder, spec_of(folder), setting="model.base")


def test_a_model_of_sentence_transformers_is_refused_by_its_files(
    checkpoints: Folders, tmp_path: Path
) -> None:
    folder = tmp_path / "sentence"
    shutil.copytree(checkpoints("qwen3"), folder)
    check_causal(folder, "deep.model")
    write_json(folder / "modules.json", [{"type": "sentence_transformers.models.Transformer"}])
    with pytest.raises(
        InputError, match=r"deep\.model is .*sentence-transformers.*not a causal language model"
    ):
        check_causal(folder, "deep.model")


def test_a_checkpoint_without_its_output_layer_is_refused(tmp_path: Path) -> None:
    folder = save_model(save_tokenizer(tmp_path), tie_word_embeddings=False)
    with pytest.raises(InputError, match=r"lacks 1 of .*lm_head.*or set deep\.model"):
        load(folder, spec_of(folder), setting="deep.model")


def test_losses_that_are_not_transformers_are_refused(
    checkpoints: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints("llama")
    original = LossModel._logits
    monkeypatch.setattr(LossModel, "_logits", lambda self, *given: 2 * original(self, *given))
    with pytest.raises(InputError, match="transformers' own"):
        load(folder, spec_of(folder), setting="deep.model")
