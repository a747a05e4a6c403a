"""Orders along a schedule: the figures equal their slow twins, and known bad orders show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from dagster_divorder.core.kernels.schedule import point_deviations
from dagster_divorder.core.measure.schedule import (
    Lap,
    Schedule,
    ScoredRuns,
    measure_along,
    of_sequences,
    of_tokens,
)
from dagster_divorder.core.order import order
from dagster_divorder.core.order.curricula import SHAPES, pieces_of
from dagster_divorder.core.order.schedule import asked_rank, token_ranks
from tests.conftest import examples
from tests.twins import schedule as twin

SEQUENCES, BATCH, WINDOW = 2000, 20, 1 / 20


@given(
    tokens=st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any),
    seed=st.integers(0, 99),
    window=st.integers(1, 60),
    batch=st.integers(1, 25),
)
@settings(max_examples=examples(60))
def test_deviations_at_a_point_equal_their_twin(tokens, seed, window, batch):
    random, tokens = np.random.default_rng(seed), np.array(tokens)
    codes = random.integers(0, 4, len(tokens)).astype(np.int32)
    mixed = random.permutation(len(tokens))
    total = int(tokens.sum())
    window, edges = min(window, total), np.arange(0, total + 1, batch)
    share = np.bincount(codes, tokens, 4) / total
    fast = point_deviations(tokens[mixed], codes[mixed], edges, tokens, codes, window, share)
    slow = twin.point_deviations(
        np.repeat(codes[mixed], tokens[mixed]), edges, np.repeat(codes, tokens), window, share
    )
    np.testing.assert_allclose(fast, slow, atol=1e-12)


def corpus(seed: int = 0, tokens: int = 8) -> ScoredRuns:
    """Sequences of two runs, whose score goes with the topic in stretches finer than a window and, over all, with the
    source."""
    random = np.random.default_rng(seed)
    raw = np.sort(random.normal(size=SEQUENCES)).repeat(2)
    topic = (np.arange(SEQUENCES) // 10 % 5).astype(np.int32).repeat(2)
    source = (
        (np.arange(SEQUENCES) / SEQUENCES + random.normal(0, 0.3, SEQUENCES) > 0.5).astype(np.int32).repeat(2)
    )
    lengths = np.full(2 * SEQUENCES, tokens)
    return ScoredRuns(
        np.arange(SEQUENCES + 1) * 2,
        lengths,
        token_ranks(raw, lengths),
        raw,
        {"topic": (topic, 5), "source": (source, 2)},
    )


def asked(shape: str, **options: Any) -> Schedule:
    every = SHAPES[shape](**options).model_dump()
    return Schedule(pieces_of(shape, every), every["strength"])


def lap(runs: ScoredRuns, ordered: NDArray[np.int64], schedule: Schedule, **options: Any) -> Lap:
    return Lap.of(ordered, runs.rank[::2], runs.sizes, schedule, window=WINDOW, batch=BATCH, **options)


def plan(runs: ScoredRuns, shape: str, inside: str, **options: Any) -> NDArray[np.int64]:
    codes, values = runs.traits["topic"]
    counts = csr_matrix((runs.sizes, (np.arange(SEQUENCES), codes[::2])), shape=(SEQUENCES, values))
    return order(
        counts,
        np.zeros(values, int),
        strategy=shape,
        inside=inside,
        scores=runs.rank[::2],
        window=WINDOW,
        batch=BATCH,
        **options,
    )


def figures(runs: ScoredRuns, ordered: NDArray[np.int64], schedule: Schedule) -> dict[str, Any]:
    return measure_along(runs, [lap(runs, ordered, schedule)], schedule, of_sequences(BATCH))


@pytest.mark.parametrize("shape", ["rise", "fall", "fold", "zigzag", "stair", "saw", "segment"])
def test_a_plan_follows_its_schedule_and_keeps_the_rest_nearer_than_window_shuffles(shape):
    runs, schedule = corpus(), asked(shape)
    measured = figures(runs, plan(runs, shape, "balanced"), schedule)
    off = measured["deviation"]
    assert off["achievable"] <= off["asked"] < 1.05 * off["shuffled"]
    assert measured["off"]["achieved"] < 1.1 * measured["off"]["shuffled"] + 0.002
    topic = measured["traits"]["topic"]
    assert topic["batch"] < 0.5 * topic["shuffled"]
    assert topic["worst"] < topic["worst_shuffled"]
    assert all(len(curve) == 100 for curve in measured["curves"].values())


def test_the_plan_that_the_schedule_alone_gives_is_the_plain_order():
    runs, schedule = corpus(), asked("saw")
    plain = plan(runs, "saw", "original")
    np.testing.assert_array_equal(lap(runs, plain, schedule).plain, plain)
    assert figures(runs, plain, schedule)["deviation"]["asked"] < 0.001


def test_a_plain_sort_clumps_what_goes_with_the_score():
    measured = figures(corpus(), np.arange(SEQUENCES), asked("rise"))
    topic = measured["traits"]["topic"]
    assert topic["batch"] > 1.5 * topic["shuffled"]
    assert measured["deviation"]["asked"] == pytest.approx(measured["deviation"]["achievable"])


def test_a_plain_shuffle_is_far_from_the_schedule():
    shuffled = np.random.default_rng(5).permutation(SEQUENCES)
    measured = figures(corpus(), shuffled, asked("rise"))
    assert measured["deviation"]["asked"] == pytest.approx(1 / 3, abs=0.02)
    assert measured["off"]["achieved"] > 0.2


def test_the_opposite_schedule_is_far_from_it_though_it_keeps_the_topics():
    runs = corpus()
    measured = figures(runs, plan(runs, "fall", "balanced"), asked("rise"))
    assert measured["traits"]["topic"]["batch"] < 0.5 * measured["traits"]["topic"]["shuffled"]
    assert measured["deviation"]["asked"] > 0.45
    # The source moves with the score, so the mix at a point is another one.
    source = measured["traits"]["source"]
    assert source["batch"] > 2 * source["shuffled"]


def test_what_the_schedule_moves_is_told_apart():
    runs = corpus()
    measured = figures(runs, plan(runs, "rise", "balanced"), asked("rise"))
    assert measured["traits"]["source"]["moved"] > 0.2 > measured["traits"]["topic"]["moved"]
    along = measured["along"]["source"]["moved"]
    assert along[0] > 0.3 and along[9] > 0.3 and min(along) < 0.1


def test_curves_equal_their_twin_with_several_laps_and_missing_scores():
    random, runs = np.random.default_rng(3), corpus(tokens=3)
    rank = np.where(random.random(len(runs.rank)) < 0.2, np.nan, runs.rank)
    runs = replace(runs, rank=rank, raw=np.where(np.isnan(rank), np.nan, runs.raw))
    schedule = asked("zigzag", folds=2, strength=0.7)
    laps = [lap(runs, random.permutation(SEQUENCES), schedule) for _ in range(2)]
    measured = measure_along(runs, laps, schedule, of_tokens(BATCH * 6))
    stream, raw, wanted = [], [], []
    for each in laps:
        places = (2 * each.order[:, None] + np.arange(2)).ravel().repeat(3)
        stream.append(runs.rank[places])
        raw.append(runs.raw[places])
        progress = (np.arange(len(places)) + 0.5) / len(places)
        wanted.append(0.5 + 0.7 * (asked_rank(schedule.pieces, progress) - 0.5))
    ranks, raw, wanted = (np.concatenate(each) for each in (stream, raw, wanted))
    curves, width = measured["curves"], len(ranks) / 100
    for point in range(100):
        begin, end = point * width, (point + 1) * width
        inside = ranks[round(begin) : round(end)]
        assert curves["achieved"][point] == pytest.approx(twin.mean_in(ranks, begin, end))
        assert curves["asked"][point] == pytest.approx(wanted[round(begin) : round(end)].mean(), abs=1e-4)
        low, high = np.nanquantile(inside, [0.1, 0.9], method="inverted_cdf")
        assert (curves["low"][point], curves["high"][point]) == (low, high)
        assert curves["raw"][point] == np.nanquantile(
            raw[round(begin) : round(end)], 0.5, method="inverted_cdf"
        )
    assert measured["deviation"]["asked"] == pytest.approx(np.nanmean(np.abs(ranks - wanted)), abs=1e-3)
    half, window = len(ranks) // 2, round(WINDOW * len(ranks) / 2)
    jump = np.nanmean(ranks[half : half + window]) - np.nanmean(ranks[half - window : half])
    (seam,) = measured["seam"]
    assert seam["achieved"] == pytest.approx(jump)
    assert seam["asked"] == pytest.approx(
        wanted[half : half + window].mean() - wanted[half - window : half].mean(), abs=1e-3
    )


def test_a_schedule_that_starts_again_jumps_at_the_seam():
    runs, schedule = corpus(), asked("rise")
    each = [lap(runs, plan(runs, "rise", "balanced"), schedule) for _ in range(2)]
    (seam,) = measure_along(runs, each, schedule, of_sequences(BATCH))["seam"]
    assert seam["achieved"] == pytest.approx(seam["asked"], abs=0.02) == pytest.approx(-0.95, abs=0.02)
    twice = np.sort(np.tile(np.arange(SEQUENCES), 2))
    together = lap(runs, twice, schedule, epochs=2)
    (seam,) = measure_along(runs, [together], schedule, of_sequences(BATCH))["seam"]
    assert seam["achieved"] == pytest.approx(seam["asked"], abs=0.001) == pytest.approx(0.05, abs=0.01)


def test_a_consumed_beginning_is_left_out():
    runs, schedule = corpus(), asked("rise")
    whole = np.argsort(np.random.default_rng(1).permutation(SEQUENCES))
    rest = lap(runs, whole[500:], schedule, begin=0.25)
    measured = measure_along(runs, [rest], schedule, of_sequences(BATCH))
    assert measured["curves"]["progress"][0] == pytest.approx(0.25 + 0.75 / 200)
    assert measured["curves"]["asked"][0] == pytest.approx(0.25 + 0.75 / 200)
    assert np.isnan(measured["along"]["topic"]["batch"][:2]).all()
    assert (
        measure_along(runs, [lap(runs, whole[:0], schedule)], schedule, of_sequences(BATCH))["traits"] == {}
    )


def test_a_segment_asks_for_the_mean_rank_of_its_stretch():
    schedule = asked("segment", first=0.2, last=0.4, ends="low-high")
    np.testing.assert_allclose(schedule.asked(np.array([0.1, 0.5, 0.9])), [0.1, 0.4, 0.8])
    schedule = asked("segment", first=0.2, last=0.4, ends="high-high")
    np.testing.assert_allclose(schedule.asked(np.array([0.1, 0.5, 0.9])), [0.7, 0.2, 0.7])
