"""Along a schedule, what the schedule moves is no drift; what clumps inside its windows is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from dagster_divorder.core.measure import Feature, Stationarity, stationarity
from dagster_divorder.core.measure.schedule import Lap
from dagster_divorder.core.measure.stationarity import (
    SHUFFLES,
    Orders,
    SampledSchedule,
    against_shuffles,
    measures,
    sampled_places,
)
from tests.conftest import examples
from tests.core.test_stationarity import BATCH, SEQUENCES, corpus, value

WINDOWS = 8
BOUNDS = np.arange(WINDOWS + 1) * SEQUENCES // WINDOWS
PLAIN = np.arange(SEQUENCES)
"""The schedule follows the place in the input, and the sources, words and vectors that hang on it."""


def scheduled(order: NDArray[np.int64]) -> SampledSchedule:
    """The schedule, of sequences that stand in an order."""
    return SampledSchedule(np.argsort(order), BOUNDS, whole=True)


def along(order: NDArray[np.int64]) -> Stationarity:
    features = [replace(feature, values=feature.values[order]) for feature in corpus()]
    return stationarity(features, SEQUENCES, batch=BATCH, schedule=scheduled(order), follows="place (rise)")


def in_windows(key: Callable[[NDArray[np.int64]], NDArray[np.float64]]) -> NDArray[np.int64]:
    """The order whose windows are each sorted by a key of their sequences."""
    windows = [PLAIN[begin:end] for begin, end in pairwise(BOUNDS)]
    return np.concatenate([window[np.argsort(key(window), kind="stable")] for window in windows])


def shuffled(seed: int = 3) -> NDArray[np.int64]:
    return scheduled(PLAIN).shuffled(np.random.default_rng(seed))


def test_a_window_shuffle_does_not_drift_though_everything_moves() -> None:
    drift = along(shuffled())
    assert drift.passed and drift.tested
    assert (
        drift.claim()
        == "The order follows place (rise); of 12 features of 1,000 sequences, none drifts beyond that."
    )
    plain = stationarity([replace(f, values=f.values[shuffled()]) for f in corpus()], SEQUENCES, batch=BATCH)
    assert {"source", "words", "vectors", "input position"} <= {of.feature for of in plain.drifting}


@pytest.mark.parametrize(
    ("key", "caught"),
    [
        (lambda window: value("length")[window], "length"),
        (lambda window: value("purity")[window], "topics"),
    ],
    ids=["lengths", "topics"],
)
def test_windows_sorted_by_what_the_schedule_does_not_move_are_caught(key, caught) -> None:
    order = in_windows(key)
    drift = along(order)
    assert caught in {of.feature for of in drift.drifting}
    assert not drift.passed and f"drift beyond that: {drift.drifting[0].feature}" in drift.claim()


def test_sequences_that_leave_their_windows_are_caught() -> None:
    """Half of them stand where their mirror image should."""
    order = shuffled()
    places = np.flatnonzero(np.random.default_rng(1).random(SEQUENCES // 2) < 0.5)
    order[places], order[SEQUENCES - 1 - places] = order[SEQUENCES - 1 - places], order[places]
    features = [replace(feature, values=feature.values[order]) for feature in corpus()]
    schedule = SampledSchedule(np.argsort(order), BOUNDS, whole=True)
    assert "source" in {
        of.feature for of in stationarity(features, SEQUENCES, batch=BATCH, schedule=schedule).drifting
    }


@pytest.mark.slow
@pytest.mark.parametrize("windows", [4, 20])
def test_window_shuffles_do_not_drift(windows: int) -> None:
    """Of 2,000 draws of a random order inside windows and its shuffles fewer than 1 % drift, over all features."""
    random, bounds = np.random.default_rng(5), np.arange(windows + 1) * SEQUENCES // windows
    schedule = SampledSchedule(PLAIN, bounds, whole=True)
    orders = Orders(np.stack([schedule.shuffled(random) for _ in range(500)]), BATCH, schedule)
    draws = random.integers(0, 500, (2000, 1 + SHUFFLES))
    alarms = np.zeros(len(draws), bool)
    for feature in corpus():
        for values in measures(feature, orders)[0].values():
            alarms |= [against_shuffles(values[draw], feature).drifts for draw in draws]
    assert alarms.mean() < 0.01


@pytest.mark.parametrize("whole", [True, False])
def test_the_mix_around_a_point_is_that_of_its_sequences(whole: bool) -> None:
    random = np.random.default_rng(0)
    plain, bounds = random.permutation(160), np.arange(0, 161, 40)
    counts = csr_matrix(random.integers(0, 4, (160, 6)))
    schedule, edges = SampledSchedule(plain, bounds, whole), np.arange(0, 161, 20)
    sums, point = schedule.sums_around(counts, edges)
    dense, _ = schedule.sums_around(counts.toarray(), edges)
    assert (sums.toarray() == dense).all()
    for group in range(8):
        low = np.clip(20 * group + 10 - 20, 0, 120) if whole else group // 2 * 40
        assert (dense[point[group]] == counts[plain[low : low + 40]].sum(axis=0)).all()


def test_batches_are_compared_with_the_mix_at_their_point() -> None:
    """By numpy alone, for a mix and for vectors."""
    order, features = shuffled(), {feature.name: feature for feature in corpus()}
    drifts = {drift.feature: drift for drift in along(order).features}
    words, vectors = features["words"].values.toarray(), features["vectors"].values
    tv, lengths = [], []
    for begin in range(0, SEQUENCES // BATCH * BATCH, BATCH):
        low = int(np.clip(np.rint((begin + BATCH / 2) / 125 * 8 - 4), 0, 56))
        around = slice(low * 1000 // 64, (low + 8) * 1000 // 64)
        inside, mix = words[order[begin : begin + BATCH]].sum(axis=0), words[around].sum(axis=0)
        tv.append(np.abs(inside / inside.sum() - mix / mix.sum()).sum() / 2)
        lengths.append(
            np.linalg.norm(vectors[order[begin : begin + BATCH]].mean(axis=0) - vectors[around].mean(axis=0))
        )
    assert drifts["words"].measures["batch"].value == pytest.approx(np.mean(tv))
    assert drifts["vectors"].measures["batch"].value == pytest.approx(np.mean(lengths))


def test_a_sample_follows_the_schedule_of_the_whole() -> None:
    """Batches of some windows, whose sequences are shuffled among those batches alone."""
    order = np.random.default_rng(2).permutation(4000)
    lap = Lap(order, np.sort(order), np.arange(0, 4001, 500), 0.0, 1)
    in_order = Lap(lap.shuffled([1]), lap.plain, lap.bounds, 0.0, 1)
    sampled = sampled_places(4000, 50, 1000, lap.bounds)
    assert len(sampled) == 1000
    batches = sampled.reshape(-1, 50)
    assert (batches == batches[:, :1] + np.arange(50)).all()
    windows, times = np.unique(batches[:, 0] // 500, return_counts=True)
    assert windows.tolist() == [0, 1, 3, 4, 6] and (times == 4).all()
    schedule = SampledSchedule.of(in_order, sampled)
    assert not schedule.whole and schedule.bounds.tolist() == [0, 200, 400, 600, 800, 1000]
    drawn = schedule.shuffled(np.random.default_rng(0))
    assert (in_order.order[sampled[drawn]] // 500 == np.repeat([0, 1, 3, 4, 6], 200)).all()
    assert (np.diff(in_order.order[sampled[schedule.plain]]) > 0).all()


def test_a_sequence_that_comes_twice_keeps_its_turns() -> None:
    plain = np.repeat(np.arange(100), 2)
    lap = Lap(plain, plain, np.arange(0, 201, 50), 0.0, 1, epochs=2)
    schedule = SampledSchedule.of(lap, np.arange(200))
    assert (schedule.plain == np.arange(200)).all() and schedule.bounds.tolist() == [0, 50, 100, 150, 200]


@given(st.integers(1, 3000), st.integers(1, 100), st.integers(1, 3000), st.integers(1, 64))
@settings(max_examples=examples(40), deadline=None)
def test_a_sample_of_windows_has_whole_batches(
    sequences: int, batch: int, at_most: int, windows: int
) -> None:
    bounds = np.unique(np.arange(windows + 1) * sequences // windows)
    places = sampled_places(sequences, batch, at_most, bounds)
    assert (np.diff(places) > 0).all() and places[-1] < sequences
    if len(places) < sequences:
        batches = places.reshape(-1, batch)
        assert (batches == batches[:, :1] + np.arange(batch)).all() and (batches[:, 0] % batch == 0).all()
        assert len(places) <= max(at_most, 20 * batch)


def test_a_feature_without_a_batch_is_compared_by_tenths() -> None:
    number = Feature("number", "number", np.arange(60) % 7)
    schedule = SampledSchedule(np.arange(60), np.array([0, 30, 60]), whole=True)
    (drift,) = stationarity([number], 60, batch=31, schedule=schedule).features
    assert set(drift.measures) == {"rank", "tenths"}
