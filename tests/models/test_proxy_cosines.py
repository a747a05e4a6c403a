"""Cosines of gradients of all parameters, of the last blocks and of their projections, on a tiny Llama."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dagster_divorder.models import gradient_proxy
from dagster_divorder.models.gradient_proxy import proxy_cosines
from dagster_divorder.models.gradients import GradientModel, load
from dagster_divorder.models.spec import read_spec
from tests.tiny_models import save_model, save_tokenizer

pytestmark = pytest.mark.usefixtures("no_matrix_units")


@pytest.fixture
def model(tmp_path: Path) -> GradientModel:
    folder = save_model(save_tokenizer(tmp_path / "llama"), tie_word_embeddings=True, num_hidden_layers=3)
    spec = read_spec(folder, pooling="last", device="cpu", dtype="float32")
    return load(folder, spec, layers=2, dims=16, seed=3, setting="model")


@pytest.mark.parametrize("numbers", [1 << 30, 500], ids=["at once", "in groups"])
def test_cosines_are_those_of_autograd_and_of_the_stage_that_projects(
    model: GradientModel, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_proxy, "GROUP_BYTES", numbers)
    draw = np.random.default_rng(0)
    windows = [draw.integers(1, 400, size).astype(np.int64) for size in (9, 12, 5, 20)]
    found = proxy_cosines(model, windows, [1, 3], [4, 16])
    assert found["whole"].shape == (4, 4) and np.allclose(np.diagonal(found["whole"]), 1)

    rows = []
    for window in windows:
        tokens = torch.from_numpy(window[None])
        model.module.requires_grad_(True)
        with torch.enable_grad():
            model.module(input_ids=tokens, labels=tokens).loss.backward()
        rows.append({name: each.grad.ravel().clone() for name, each in model.module.named_parameters()})
        model.module.zero_grad()
    model.module.requires_grad_(False)

    def cosines(*prefixes: str) -> np.ndarray:
        flat = torch.stack(
            [torch.cat([of for name, of in row.items() if name.startswith(prefixes)]) for row in rows]
        )
        units = torch.nn.functional.normalize(flat.double(), dim=1)
        return (units @ units.T).numpy()

    assert np.allclose(found["whole"], cosines(""), atol=1e-5)
    assert np.allclose(found[1], cosines("model.layers.2"), atol=1e-5)
    assert np.allclose(found[3], cosines("model.layers"), atol=1e-5)

    # What gradient_embeddings stores of the same windows.
    order = np.argsort([-len(window) for window in windows])
    ids = np.zeros((4, 20), np.int64)
    for row, at in enumerate(order):
        ids[row, : len(windows[at])] = windows[at]
    stored = torch.nn.functional.normalize(
        model(ids, np.array([len(windows[at]) for at in order])).double(), dim=1
    ).numpy()
    assert np.allclose(found["dims", 16][np.ix_(order, order)], stored @ stored.T, atol=1e-4)


def test_documents_without_a_gradient_are_left_out(
    model: GradientModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    autograd, calls = gradient_proxy.autograd, []

    def broken(module: object, tokens: torch.Tensor, names: list[str]) -> dict[str, torch.Tensor]:
        calls.append(tokens)
        found = autograd(module, tokens, names)
        factor = {1: float("nan"), 2: 0.0}.get(len(calls) - 1, 1.0)
        return {name: factor * each for name, each in found.items()}

    monkeypatch.setattr(gradient_proxy, "autograd", broken)
    windows = [np.arange(at + 1, at + 7, dtype=np.int64) for at in range(4)]
    found = proxy_cosines(model, windows, [1], [16])
    assert found["whole"].shape == found[1].shape == found["dims", 16].shape == (2, 2)
    assert np.isfinite(found["dims", 16]).all()
