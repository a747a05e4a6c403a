"""The training loop against a plain one, and what it notes against sums that are done by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from dagster_divorder.core.evidence.training_evidence import Trained
from dagster_divorder.models import training
from dagster_divorder.models.training import (
    MATRICES,
    Heldout,
    Task,
    make_model,
    rate,
    stable_rank,
    token_classes,
)

LENGTH, BATCH, VOCABULARY = 12, 4, 50


def data(rows: int, epochs: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    order = np.stack([np.arange(rows), *(generator.permutation(rows) for _ in range(epochs - 1))])
    return {
        "ids": generator.integers(0, VOCABULARY, (rows, LENGTH)).astype(np.uint16),
        "counts": np.ones((rows, LENGTH), bool),
        "epochs": order,
    }


def texts(**sources: tuple[int, ...]) -> Heldout:
    """Source -> lengths of its texts."""
    lengths = np.array([length for of in sources.values() for length in of], np.int64)
    source = np.repeat(np.arange(len(sources)), [len(of) for of in sources.values()])
    ids = np.random.default_rng(3).integers(0, VOCABULARY, lengths.sum())
    return Heldout(list(sources), source, ids, lengths, np.ones(len(ids), bool))


def train(
    rows: dict[str, np.ndarray],
    seed: int = 1,
    rate: float = 3e-3,
    heldout: Heldout | None = None,
    **more: Any,
) -> Trained:
    task = Task(classes=np.arange(VOCABULARY), batch=BATCH, device="cpu", heldout=heldout or texts())
    return training.train(task, rows, seed, rate, **more)


def plain_losses(arrays: dict[str, np.ndarray]) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of a loop without anything beside it."""
    model = make_model(VOCABULARY, LENGTH, 1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    ids = torch.from_numpy(arrays["ids"][arrays["epochs"].ravel()].astype(np.int64))
    steps = len(ids) // BATCH
    losses, norms = [], []
    for step, batch in enumerate(ids.split(BATCH)):
        optimiser.param_groups[0]["lr"] = 3e-3 * rate(step, steps)
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
    arrays = data(24, epochs=2)
    found = train(arrays)
    losses, norms = plain_losses(arrays)
    np.testing.assert_allclose(found.losses, losses, rtol=2e-4)
    np.testing.assert_allclose(found.norms, norms, rtol=2e-3)
    # Micro-batches change last digits alone.
    monkeypatch.setattr(training, "LOGITS", LENGTH * VOCABULARY)
    np.testing.assert_allclose(train(arrays).losses, losses, rtol=2e-4)


def test_the_same_training_gives_the_same_bytes_and_tokens_are_counted() -> None:
    arrays, heard = data(16), []
    found, again = (train(arrays, heldout=texts(a=(LENGTH, 3)), advance=heard.append) for _ in range(2))
    for name, array in found._asdict().items():
        assert np.array_equal(array, getattr(again, name)), name
    assert sum(heard) == 2 * arrays["ids"].size
    assert not np.array_equal(found.losses, train(arrays, seed=2).losses)


def test_what_does_not_count_is_not_learnt() -> None:
    arrays = data(8)
    arrays["counts"][:, LENGTH // 2 :] = False
    other = {**arrays, "ids": arrays["ids"].copy()}
    other["ids"][:, LENGTH // 2 :] = 0
    found, same = (train(one) for one in (arrays, other))
    np.testing.assert_array_equal(found.losses, same.losses)


def test_held_out_texts_are_read_alone_after_each_epoch() -> None:
    read = texts(a=(LENGTH, 5, LENGTH + 4), b=(0,), c=(7,))
    found = train(data(8, epochs=2), rate=1e-9, heldout=read)
    # So slow a training leaves the model as it was.
    model, losses = make_model(VOCABULARY, LENGTH, 1), []
    windows = (slice(0, 12), slice(12, 17), slice(17, 29), slice(28, 33), slice(33, 40))
    for window in windows:
        tokens = torch.from_numpy(read.ids[window])[None]
        with torch.no_grad():
            scores = model(input_ids=tokens[:, :-1]).logits
        losses.append(cross_entropy(scores[0], tokens[0, 1:], reduction="none").tolist())
    assert found.heldout.shape == (2, 3)
    np.testing.assert_allclose(found.heldout[:, 0], np.concatenate(losses[:4]).mean(), atol=1e-5)
    assert np.isnan(found.heldout[:, 1]).all()
    np.testing.assert_allclose(found.heldout[:, 2], np.mean(losses[4]), atol=1e-5)


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [rate(step, 100) for step in range(100)]
    np.testing.assert_allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[-1] == pytest.approx(0.1)
    assert all(after < before for before, after in pairwise(rates[4:]))
    # Not one step is too few.
    assert math.isfinite(rate(0, 1))


def test_stable_ranks() -> None:
    assert stable_rank(torch.eye(5)) == pytest.approx(5)
    assert stable_rank(torch.outer(torch.arange(3.0), torch.arange(4.0))) == pytest.approx(1)
    assert math.isnan(stable_rank(torch.zeros(2, 2)))
    model = make_model(VOCABULARY, LENGTH, 1)
    # Every matrix but the embedding.
    named = [name for name, weight in model.named_parameters() if weight.ndim == 2]
    assert sorted(named) == sorted([*MATRICES, "model.embed_tokens.weight"])
    ranks = train(data(16)).ranks
    assert ranks.shape == (2, len(MATRICES))
    assert (ranks >= 1 - 1e-6).all()


def test_a_loss_that_is_no_number_ends_the_training_at_its_step() -> None:
    found = train(data(80), rate=1e12)
    failed = int(np.argmin(np.isfinite(found.losses)))
    assert 0 < failed < 20
    assert np.isnan(found.losses[failed:]).all() and np.isnan(found.ranks).all()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4000))
def test_frequent_tokens_have_a_class_of_their_own(counts: list[int]) -> None:
    room = training.VOCABULARY
    classes, number = token_classes(np.array(counts)), min(room, len(counts))
    assert classes.min() >= 0 and classes.max() == number - 1
    sizes = np.bincount(classes, minlength=number)
    own = number if len(counts) <= room else room - room // 4
    assert (sizes[:own] == 1).all()
    if len(counts) > room:
        shared = np.flatnonzero(classes >= own)
        assert np.array(counts)[shared].max() <= np.sort(counts)[::-1][own - 1]
        assert np.ptp(sizes[own:]) <= 1
