"""Scores of texts by text-classification models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, LlamaConfig, PreTrainedTokenizerFast

from dagster_divorder.errors import InputError
from dagster_divorder.models import quality
from dagster_divorder.models.quality import Classifier
from tests.tiny_models import TEXTS, save_model, save_tokenizer

SIZES = {
    "vocab_size": 600,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}


def save_classifier(folder: Path, labels: int, kind: str = "bert") -> Path:
    save_tokenizer(folder)
    config = (BertConfig if kind == "bert" else LlamaConfig)(**SIZES, num_labels=labels)
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_config(config).eval().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("kind", "labels"), [("bert", 1), ("bert", 3), ("llama", 2)])
def test_scores_are_those_of_the_model_text_by_text(
    kind: str, labels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_classifier(tmp_path, labels, kind)
    monkeypatch.setattr(quality, "BATCH", 200)  # several batches, and padding in them
    texts = [*TEXTS, TEXTS[0] * 20, "a", ""]
    found = Classifier(folder, "cpu")(texts)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    assert len(np.unique(found.round(5))) > 5
    assert found.min() >= 0
    for text, score in zip(texts[:-1], found, strict=False):
        ids = torch.tensor([tokenizer.encode(text)[:64]])
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0]
        alone = (
            max(0.0, float(logits[0]))
            if labels == 1
            else float(logits.softmax(0) @ torch.arange(float(labels)))
        )
        assert score == pytest.approx(alone, abs=1e-4)


def test_memory_that_ran_out_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", full)
    with pytest.raises(InputError, match=r"does not fit into the memory of cpu; give a smaller .*quality"):
        Classifier(save_classifier(tmp_path, 1), "cpu")


def test_a_model_without_a_trained_head_is_refused(tmp_path: Path) -> None:
    save_model(save_tokenizer(tmp_path), "bert")
    with pytest.raises(InputError, match=r"has no weights classifier\.bias, classifier\.weight"):
        Classifier(tmp_path, "cpu")
