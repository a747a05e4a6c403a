"""The training loop against a plain one, and what it notes against sums that are done by hand."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from dagster_divorder.errors import InputError
from dagster_divorder.models import training
from dagster_divorder.models.training import (
    PRESETS,
    Task,
    in_memory_export,
    make_model,
    matrix_names,
    rate,
    stable_rank,
    token_classes,
    train,
)
from tests.tiny_models import save_model

LENGTH, BATCH, VOCABULARY = 12, 4, 50


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the digits of bfloat16 are too few to compare sums by."""
    monkeypatch.setattr(training, "_dtype", lambda device: torch.float32)


def data(rows: int, epochs: int = 1, seed: int = 0, documents: int = 2) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    order = np.stack([np.arange(rows), *(generator.permutation(rows) for _ in range(epochs - 1))])
    return {
        "ids": generator.integers(0, VOCABULARY, (rows, LENGTH)).astype(np.uint16),
        "lengths": np.full(rows * documents, LENGTH // documents),
        "counts": np.full(rows, documents),
        "epochs": order,
        "padded": np.array([False]),
    }


def heldout(classes: np.ndarray, document: int = LENGTH) -> np.ndarray:
    """Rows of documents of so many tokens."""
    places = np.tile(np.arange(LENGTH) % document, (len(classes), 1))
    return np.stack([classes, places]).astype(np.int32)


def task(**changes: Any) -> Task:
    made = Task(
        model="tiny",
        classes=np.arange(VOCABULARY, dtype=np.int32),
        class_count=VOCABULARY,
        seed=1,
        learning_rate=3e-3,
        schedule="cosine",
        batch=BATCH,
        epochs=1,
        attend_within_documents=False,
        device="cpu",
        heldout={},
    )
    return replace(made, **changes)


def plain_losses(arrays: dict[str, np.ndarray], of: Task) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of a loop without anything beside it."""
    model = make_model(of.model, of.class_count, LENGTH, of.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    ids = torch.from_numpy(arrays["ids"][arrays["epochs"].ravel()].astype(np.int64))
    steps = len(ids) // of.batch
    losses, norms = [], []
    for step, batch in enumerate(ids.split(of.batch)):
        optimiser.param_groups[0]["lr"] = of.learning_rate * rate(step, steps, of.schedule)
        scores = model(input_ids=batch[:, :-1]).logits
        loss = cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        norms.append(math.sqrt(sum(float((weight.grad**2).sum()) for weight in model.parameters())))
        optimiser.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.slow
def test_it_is_a_plain_loop_over_consecutive_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, of = data(24, epochs=2), task(epochs=2)
    found = train(of, in_memory_export(arrays, BATCH))
    losses, norms = plain_losses(arrays, of)
    np.testing.assert_allclose(found.losses, losses, rtol=2e-4)
    np.testing.assert_allclose(found.norms, norms, rtol=2e-3)
    assert found.failed == -1
    # Micro-batches change last digits alone.
    monkeypatch.setattr(training, "LOGITS", LENGTH * VOCABULARY)
    np.testing.assert_allclose(train(of, in_memory_export(arrays, BATCH)).losses, losses, rtol=2e-4)


def test_the_same_training_gives_the_same_bytes_and_tokens_are_counted() -> None:
    arrays, heard = data(16), []
    of = task(heldout={"a": heldout(arrays["ids"][:2])})
    found, again = (train(of, in_memory_export(arrays, BATCH), heard.append) for _ in range(2))
    for name, array in found._asdict().items():
        assert np.array_equal(array, getattr(again, name)), name
    assert sum(heard) == 2 * arrays["ids"].size
    assert not np.array_equal(found.losses, train(task(seed=2), in_memory_export(arrays, BATCH)).losses)


def test_attention_can_stop_where_a_document_does() -> None:
    arrays = data(4)
    other = {**arrays, "ids": arrays["ids"].copy()}
    # The first half of each row is one document; what it holds must not reach the second.
    other["ids"][:, : LENGTH // 2] = (other["ids"][:, : LENGTH // 2] + 7) % VOCABULARY
    for apart in (False, True):
        of = task(attend_within_documents=apart)
        sums = []
        for one in (arrays, other):
            loop = training._Loop(of, in_memory_export(one, BATCH))
            loop.model.eval()
            (inputs, labels), *_ = loop.stream
            labels[:, : LENGTH // 2] = -100
            sums.append(loop._sum(*loop._classes(inputs, labels, slice(None))).item())
        assert (abs(sums[0] - sums[1]) < 1e-4) == apart


@pytest.mark.parametrize("apart", [False, True])
def test_held_out_loss_is_taken_with_the_attention_of_training(apart: bool) -> None:
    loop = training._Loop(task(attend_within_documents=apart), in_memory_export(data(4), BATCH))
    loop.model.eval()
    rows = np.random.default_rng(3).integers(0, VOCABULARY, (2, LENGTH)).astype(np.int32)
    # Two documents in the first row; in the second one, of which the end is padding.
    lengths = [[5, LENGTH - 5], [LENGTH - 2]]
    places = np.zeros_like(rows)
    rows[1, LENGTH - 2 :] = -1
    documents = []
    for row, its in enumerate(lengths):
        for first, length in zip(np.cumsum([0, *its]), its, strict=False):
            places[row, first : first + length] = np.arange(length)
            documents.append(rows[row, first : first + length])
    # Apart, each document is scored as if it were alone; else each row is.
    alone = documents if apart else [row[row >= 0] for row in rows]
    losses = []
    for ids in alone:
        tokens = torch.from_numpy(ids.astype(np.int64))[None]
        with torch.no_grad():
            scores = loop.model(input_ids=tokens[:, :-1]).logits
        losses += cross_entropy(scores[0], tokens[0, 1:], reduction="none").tolist()
    assert len(losses) == 2 * LENGTH - 2 - (3 if apart else 2)
    assert loop._loss_of(np.stack([rows, places])) == pytest.approx(np.mean(losses), abs=1e-5)


def test_what_is_padded_is_not_learnt() -> None:
    arrays = data(8, documents=1)
    arrays["lengths"] = np.full(8, LENGTH // 2)
    arrays["padded"] = np.array([True])
    other = {**arrays, "ids": arrays["ids"].copy()}
    other["ids"][:, LENGTH // 2 :] = 0
    found, same = (train(task(), in_memory_export(one, BATCH)) for one in (arrays, other))
    np.testing.assert_array_equal(found.losses, same.losses)


def test_held_out_loss_is_that_of_the_model_after_each_epoch() -> None:
    arrays = data(16, epochs=2)
    rows = np.full((3, LENGTH), -1, np.int32)
    rows[:2], rows[2, :5] = 7, 7
    of = task(epochs=2, heldout={"a": heldout(rows), "b": heldout(np.full((1, LENGTH), -1))})
    found = train(of, in_memory_export(arrays, BATCH))
    # Of a row of one token over and over the model says how probable that token is after itself.
    model = make_model("tiny", VOCABULARY, LENGTH, of.seed)
    with torch.no_grad():
        scores = model(input_ids=torch.full((1, LENGTH), 7)).logits[0, :-1].log_softmax(-1)[:, 7]
    begin = -(2 * scores.sum() + scores[:4].sum()) / (2 * (LENGTH - 1) + 4)
    assert found.heldout.shape == (2, 2)
    assert found.heldout[0, 0] == pytest.approx(float(begin), abs=0.5)
    assert np.isnan(found.heldout[:, 1]).all()
    assert found.heldout[0, 0] != found.heldout[1, 0]


def test_schedules_of_the_learning_rate() -> None:
    rates = {name: [rate(step, 100, name) for step in range(100)] for name in ("cosine", "constant", "wsd")}
    for values in rates.values():
        np.testing.assert_allclose(values[:5], [0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates["constant"][4:] == [1.0] * 96
    assert rates["wsd"][4:80] == [1.0] * 76
    # A quarter of the way down, half of the fall is done.
    assert rates["wsd"][84] == pytest.approx(0.1 + 0.9 / 2)
    assert rates["cosine"][-1] == rates["wsd"][-1] == pytest.approx(0.1)
    assert all(after < before for before, after in pairwise(rates["wsd"][79:]))
    assert all(after < before for before, after in pairwise(rates["cosine"][4:]))
    # Not one step is too few for any.
    assert all(math.isfinite(rate(0, 1, name)) for name in rates)


@pytest.mark.parametrize("steps", [1, 10, 50])
def test_averages_of_the_last_weights(steps: int) -> None:
    loop = training._Loop(task(), in_memory_export(data(4), BATCH))
    averages = training._Averages(loop.weights, steps)
    first, path = loop.weights[0], []
    for step in range(steps):
        with torch.no_grad():
            first.fill_(float(step + 1) ** 2)
        path.append(float(step + 1) ** 2)
        averages.add(step)
    plain, exponential = (weights[0].flatten()[0].item() for weights in averages.weights())
    last = max(1, round(0.2 * steps))
    ages = np.unique(np.linspace(0, last - 1, min(8, last)).astype(int))
    assert plain == pytest.approx(np.mean([path[-1 - age] for age in ages]))
    share = 1 / (1 + 0.05 * steps)
    weights = share * (1 - share) ** np.arange(steps)[::-1]
    assert exponential == pytest.approx(np.dot(weights, path) / weights.sum(), rel=1e-5)


def test_averaged_weights_are_validated_after_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = data(16, epochs=2)
    of = task(epochs=2, heldout={"a": heldout(arrays["ids"][:2]), "b": heldout(arrays["ids"][2:4])})
    found = train(of, in_memory_export(arrays, BATCH))
    assert found.averaged.shape == (2, 2)
    assert np.isfinite(found.averaged).all()
    assert len({*found.averaged[:, 0], found.heldout[-1, 0]}) == 3
    # Averages of one step, the last, are the last weights.
    monkeypatch.setattr(training, "AVERAGED", 1e-9)
    monkeypatch.setattr(training, "MEAN_AGE", 0.0)
    same = train(of, in_memory_export(arrays, BATCH))
    for name in ("losses", "norms", "heldout", "remembered", "ranks", "noise"):
        np.testing.assert_array_equal(getattr(same, name), getattr(found, name))
    np.testing.assert_allclose(same.averaged, [same.heldout[-1]] * 2, rtol=1e-6)


def test_variance_of_batches_is_none_where_all_are_alike_and_as_by_hand_elsewhere() -> None:
    alike = data(16)
    alike["ids"][:] = np.tile(alike["ids"][:BATCH], (4, 1))
    assert train(task(), in_memory_export(alike, BATCH)).noise[0] == pytest.approx(0, abs=1e-5)
    loop = training._Loop(task(), in_memory_export(data(16), BATCH))
    noise, squared = loop._noise(4, 4)
    gradients = []
    for at in range(4):
        loop._backward(*loop.stream.dataset.__getitems__(range(at * BATCH, (at + 1) * BATCH)))
        gradients.append(torch.cat([weight.grad.flatten() for weight in loop.weights]).double().numpy())
    assert noise == pytest.approx(np.var(gradients, axis=0, ddof=1).sum(), rel=1e-4)
    assert squared == pytest.approx((np.mean(gradients, axis=0) ** 2).sum(), rel=1e-4)


def test_stable_ranks() -> None:
    assert stable_rank(torch.eye(5)) == pytest.approx(5)
    assert stable_rank(torch.outer(torch.arange(3.0), torch.arange(4.0))) == pytest.approx(1)
    assert math.isnan(stable_rank(torch.zeros(2, 2))) and math.isnan(stable_rank(None))
    names = matrix_names("tiny", VOCABULARY, LENGTH)
    assert len(names) == 7 * PRESETS["tiny"].layers
    assert sum(map(training.is_attention, names)) == 4 * PRESETS["tiny"].layers
    ranks = train(task(), in_memory_export(data(16), BATCH)).ranks
    assert ranks.shape == (2, len(names))
    assert (ranks >= 1 - 1e-6).all()


def test_a_loss_that_is_no_number_ends_the_training_at_its_step() -> None:
    found = train(task(learning_rate=1e12), in_memory_export(data(80), BATCH))
    assert 0 < found.failed < 20
    assert np.isfinite(found.losses[: found.failed]).all()
    assert np.isnan(found.losses[found.failed :]).all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4000))
def test_frequent_tokens_have_a_class_of_their_own(counts: list[int]) -> None:
    room = PRESETS["tiny"].vocabulary
    classes, number = token_classes("tiny", np.array(counts))
    assert number == min(room, len(counts))
    assert classes.min() >= 0 and classes.max() < number
    sizes = np.bincount(classes, minlength=number)
    own = number if len(counts) <= room else room - room // 4
    assert (sizes[:own] == 1).all()
    if len(counts) > room:
        shared = np.flatnonzero(classes >= own)
        assert np.array(counts)[shared].max() <= np.sort(counts)[::-1][own - 1]
        assert np.ptp(sizes[own:]) <= 1


def test_a_directory_is_read_as_it_is(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path / "gpt2", "gpt2"))
    classes, number = token_classes(folder, np.zeros(VOCABULARY, np.int64))
    assert number == VOCABULARY and (classes == np.arange(VOCABULARY)).all()
    found = train(task(model=folder, class_count=VOCABULARY), in_memory_export(data(8), BATCH))
    assert np.isfinite(found.losses).all() and np.isfinite(found.ranks).all()


@pytest.mark.slow
def test_a_model_that_cannot_be_trained_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"'1T'; expected tiny, 10M, 50M, 160M, or a directory"):
        training.check_model("1T", LENGTH)
    llama = str(save_model(tmp_path / "llama"))
    with pytest.raises(InputError, match=r"48 positions and sequence.length is 64"):
        training.check_model(llama, 64)
    with pytest.raises(InputError, match=r"has 600 tokens and model.base 601"):
        make_model(llama, 601, LENGTH, 0)
    with pytest.raises(InputError, match=r"encoder|causal|Unrecognized|unusable|cannot"):
        training.check_model(str(save_model(tmp_path / "vit", "vit")), LENGTH)
    monkeypatch.setattr(training, "main_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"evidence.model tiny has .* weights, which take .* to train"):
        make_model("tiny", VOCABULARY, LENGTH, 0)


def test_memory_that_runs_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> float:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(training._Loop, "_backward", full)
    with pytest.raises(InputError, match=r"memory ran out in training evidence.model tiny on batches of 4"):
        train(task(), in_memory_export(data(8), BATCH))


def test_kernels_of_a_gpu_are_deterministic_in_this_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where a machine has one GPU, no worker is started whose environment could say so.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    with training._deterministic():
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
