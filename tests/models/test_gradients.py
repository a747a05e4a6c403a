"""Gradients of documents: those of autograd for one document at a time, whatever the batches; and what projecting them
keeps."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError
from dagster_divorder.models.embed import NOT_FINITE
from dagster_divorder.models.gradients import GradientModel, load, signs
from dagster_divorder.models.pretrained import quiet
from dagster_divorder.models.spec import read_spec
from tests.conftest import examples
from tests.tiny_models import (
    CAUSAL,
    CONTEXT,
    Folders,
    causal_checkpoints,
    save_model,
    save_tokenizer,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return causal_checkpoints(tmp_path_factory.mktemp("models"))


def opened(folder: Path, **options: Any) -> GradientModel:
    spec = read_spec(folder, pooling="last")
    spec = dataclasses.replace(spec, window=min(spec.window, CONTEXT), suffix=())
    return load(folder, spec, **{"layers": 2, "dims": 64, "seed": 0, **options})


def autograd(model: Any, layers: int, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Gradients of the mean loss of one document, as plain transformers and autograd have them."""
    model.zero_grad()
    blocks = model.base_model.h if hasattr(model.base_model, "h") else model.base_model.layers
    chosen = {id(each) for block in blocks[len(blocks) - layers :] for each in block.parameters()}
    tokens = torch.from_numpy(ids)[None]
    logits = model(input_ids=tokens).logits[0, :-1].float()
    torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).backward()
    return {
        name: (torch.zeros_like(each) if each.grad is None else each.grad).numpy().ravel()
        for name, each in model.named_parameters()
        if id(each) in chosen
    }


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [*CAUSAL, "bootstrap"])
def test_gradients_are_those_of_autograd(checkpoints: Folders, kind: str, layers: int) -> None:
    from transformers import AutoModelForCausalLM

    folder = checkpoints(kind)
    model = opened(folder, layers=layers)
    with quiet():
        theirs = AutoModelForCausalLM.from_pretrained(folder)
    # What is padding is as random as the rest.
    lengths, ids = np.array([CONTEXT, 31, 30, 2, 1]), np.random.default_rng(0).integers(1, 400, (5, CONTEXT))
    found = model.gradients(ids, lengths)
    for row, length in enumerate(lengths.tolist()):
        if length == 1:
            assert not any(each[row].any() for each in found.values())
            continue
        expected = autograd(theirs, layers, ids[row, :length])
        size = math.sqrt(sum(float(np.square(each).sum()) for each in expected.values()))
        assert size > 0 or length == 2
        for name, each in found.items():
            assert np.abs(each[row].numpy() - expected[name]).max() <= 1e-5 * size, name
        # Experts are left out.
        left_out = expected.keys() - found.keys()
        assert bool(left_out) == (kind == "mixtral") and all("experts" in name for name in left_out)


def documents(number: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Ids end to end, and lengths: of some tokens, of one, of none, of more than a window."""
    rng = np.random.default_rng(3)
    lengths = np.array([0, 1, 2, 3 * CONTEXT, *rng.integers(2, CONTEXT, number - 4)])
    return rng.integers(1, 400, lengths.sum()).astype(np.uint16), lengths


@pytest.mark.slow
def test_a_vector_is_the_projected_gradient_whatever_the_batches(checkpoints: Folders) -> None:
    llama, (ids, lengths) = opened(checkpoints("llama")), documents()
    expected = np.zeros((len(lengths), 64))
    starts = np.cumsum(lengths) - lengths
    for row, (start, length) in enumerate(
        zip(starts.tolist(), np.minimum(lengths, CONTEXT).tolist(), strict=True)
    ):
        if length < 2:
            continue
        tokens = ids[start : start + length].astype(np.int64)[None]
        for name, each in llama.gradients(tokens, np.array([length])).items():
            projection = signs(0, name, range(each.shape[1]), 64)
            expected[row] += (each.double() @ projection.double())[0].numpy()
        expected[row] /= np.linalg.norm(expected[row])
    for positions in (1, 100, 1000):
        llama.budget = positions
        found = llama.embed(ids, lengths)
        np.testing.assert_allclose(found["vectors"], expected, atol=1e-5)
        assert not found["flagged"].any()


def test_a_loss_that_is_not_finite_is_flagged_where_its_slope_is(checkpoints: Folders) -> None:
    """A token that cannot come: the slope of its loss is finite."""
    model = opened(checkpoints("llama"))
    bias = torch.zeros(600)
    bias[7] = -torch.inf
    model.module.get_output_embeddings().bias = torch.nn.Parameter(bias, requires_grad=False)
    ids, lengths = documents(20)
    ids[ids == 7] = 8
    ids[lengths[:5].sum() + 1] = 7
    found = model.embed(ids, lengths)
    assert np.flatnonzero(found["flagged"] == NOT_FINITE).tolist() == [5]


def test_signs_are_the_same_everywhere() -> None:
    found = signs(5, "model.layers.1.mlp.up_proj.weight", range(1000), 100)
    assert found.dtype == torch.float32 and found.shape == (1000, 100)
    assert hashlib.sha256(found.numpy().tobytes()).hexdigest() == (
        "0b5c47625552c1f6b856f4c355f7bc3c0dcf643ec4c991a65f707bf5d0b5a54a"
    )


@settings(max_examples=examples(15), deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    cuts=st.lists(st.integers(0, 500), max_size=4),
    start=st.sampled_from([0, 1, 2**31, 2**40]),
    dims=st.sampled_from([1, 63, 64, 65, 200]),
)
def test_signs_do_not_depend_on_what_is_made_together(
    seed: int, cuts: list[int], start: int, dims: int
) -> None:
    whole = signs(seed, "w", range(start, start + 500), 200)
    assert (whole.abs() == 1).all()
    edges = [0, *sorted(cuts), 500]
    parts = [
        signs(seed, "w", range(start + one, start + other), dims)
        for one, other in pairwise(edges)
        if other > one
    ]
    torch.testing.assert_close(torch.cat(parts), whole[:, :dims], rtol=0, atol=0)


@pytest.mark.slow
def test_models_that_will_not_do(checkpoints: Folders, tmp_path: Path) -> None:
    from transformers import BertLMHeadModel

    for kind in ("bert", "t5"):
        save_tokenizer(save_model(tmp_path / kind, kind))
    with quiet():
        BertLMHeadModel.from_pretrained(tmp_path / "bert").save_pretrained(tmp_path / "bert")
    with pytest.raises(InputError, match=r"bert \(\w+\) is not a causal language model"):
        opened(tmp_path / "bert")
    with pytest.raises(InputError, match=r"or set deep.model to a causal language model"):
        opened(tmp_path / "t5")
    every, both = (opened(checkpoints("llama"), layers=layers).parameters for layers in (3, 2))
    assert every.keys() == both.keys() and sum(each.numel() for each in every.values()) == 2 * 9_280
    save_tokenizer(save_model(tmp_path / "untied", "llama"))
    with pytest.raises(InputError, match=r"lacks 1 of 21 weights of LlamaForCausalLM .*lm_head"):
        opened(tmp_path / "untied")
