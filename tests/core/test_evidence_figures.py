"""Figures of trainings: differences with intervals as Student has them, the seam, and what is said of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dagster_divorder.core.evidence.training_evidence import (
    HELD_OUT,
    JUMP,
    NOTABLE,
    POWER,
    SPIKE_SIZE,
    Comparison,
    Trained,
    compare,
    estimate,
    figures_of,
    is_beyond_noise,
    lines_of,
    pairs_to_show,
    sensitivity,
    verdict,
)

PARTS = {"attention": np.array([True, False]), "feed-forward": np.array([False, True])}


def trained(losses: Any, heldout: Any = ((5.0, 4.0), (3.0, 2.0)), norms: Any = None) -> Trained:
    losses = np.asarray(losses, np.float32)
    return Trained(
        losses=losses,
        norms=np.ones_like(losses) if norms is None else np.asarray(norms, np.float32),
        heldout=np.array(heldout),
        ranks=np.array([[2.0, 3.0], [4.0, 5.0]]),
    )


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12))
def test_an_interval_is_students(values: list[float]) -> None:
    found = estimate(values)
    if np.std(values) < 1e-6 * (1 + abs(np.mean(values))):  # SciPy's own digits do not reach so far
        assert found["error"] == pytest.approx(0, abs=1e-3)
        return
    result = stats.ttest_1samp(values, 0)
    interval = result.confidence_interval(0.95)
    assert found["mean"] == pytest.approx(np.mean(values), abs=1e-9)
    assert found["low"] == pytest.approx(interval.low, rel=1e-6, abs=1e-9)
    assert found["high"] == pytest.approx(interval.high, rel=1e-6, abs=1e-9)
    if abs(result.pvalue - 0.05) > 1e-6:
        assert is_beyond_noise(found) == (result.pvalue < 0.05)


def test_few_values_tell_no_noise_and_failed_ones_are_left_out() -> None:
    assert estimate([2.0]) == {"mean": 2.0, "error": None, "low": None, "high": None}
    assert estimate([math.nan])["mean"] is None
    assert estimate([1.0, math.nan, 3.0]) == estimate([1.0, 3.0])
    assert not is_beyond_noise(estimate([2.0]))


@pytest.mark.parametrize(("spread", "draws"), [(0.005, 4000), (0.01, 4000), (0.04, 1000)])
def test_as_many_pairs_as_are_asked_for_show_a_difference_as_often_as_is_said(
    spread: float, draws: int
) -> None:
    pairs = pairs_to_show(NOTABLE, spread)
    drawn = np.random.default_rng(0).normal(NOTABLE, spread, (draws, pairs))
    shown = np.mean([(estimate(draw)["low"] or 0.0) > 0 for draw in drawn])
    assert shown == pytest.approx(POWER, abs=0.08)


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((-0.11, -0.1, -0.09), ""),
        ((-0.1,), ""),
        ((math.nan, math.nan), ""),
        (
            (0.001, -0.001, 0.0),
            "2 seeds (now 3) show a difference of 0.01 nats in 80% of such comparisons, by the spread",
        ),
        ((0.0, 0.0), "2 seeds (now 2) show"),
        (
            (0.02, -0.01, 0.0, math.nan),
            "21 seeds (now 3) show a difference of 0.01 nats in 80% of",
        ),
    ],
)
def test_what_would_show_a_difference_is_said_where_none_is_beyond_noise(
    differences: tuple[float, ...], said: str
) -> None:
    sentence = sensitivity(differences, 1_000)
    assert sentence.startswith(said) and bool(sentence) == bool(said)
    assert ("21,000 tokens of training" in sentence) == said.startswith("21")


def compared(ours: list[Trained], shuffled: list[Trained], epoch: int = 50) -> Comparison:
    figures = ([figures_of(each, epoch, ["a", "b"], PARTS) for each in of] for of in (ours, shuffled))
    return compare(*figures)


def test_the_seam_of_a_dip_and_a_spike() -> None:
    losses = np.r_[np.full(95, 5.0), np.full(5, 3.0), np.full(5, 4.5), np.full(95, 3.0)]
    norms = np.r_[np.full(100, 2.0), 6.0, np.full(99, 9.0)]
    one = [trained(losses, norms=norms)]
    found, lines = compared(one, one, epoch=100), lines_of(one, 100)
    assert (found[JUMP]["value"]["mean"], found[SPIKE_SIZE]["value"]["mean"]) == (1.5, 3.0)
    np.testing.assert_array_equal(lines["losses"], losses)
    np.testing.assert_array_equal(lines["norms around the seam"], norms[90:110])


def test_figures_are_paired_by_training() -> None:
    shuffled = [trained(np.full(100, 4.0), [[5, 5], [level, level]]) for level in (1.0, 2.0, 9.0)]
    ours = [trained(np.full(100, 4.0), [[5, 5], [level - 0.5, level - 0.3]]) for level in (1.0, 2.0, 9.0)]
    found = compared(ours, shuffled)
    # Each less its own: no noise is left, though the trainings differ widely.
    assert found[HELD_OUT]["less shuffled"]["mean"] == pytest.approx(-0.4)
    assert is_beyond_noise(found[HELD_OUT]["less shuffled"])
    assert found[HELD_OUT]["value"]["error"] == pytest.approx(np.std([1, 2, 9], ddof=1) / 3**0.5)
    assert found["held-out loss, a"]["less shuffled"]["mean"] == pytest.approx(-0.5)
    assert found["held-out loss, b"]["value"]["mean"] == pytest.approx(3.7)
    assert found["stable rank, attention, 20%"]["value"]["mean"] == 2.0
    assert found["stable rank, feed-forward, 100%"]["value"]["mean"] == 5.0
    # Whatever is shown of an order is shown beside shuffling, with an interval.
    for name in (JUMP, SPIKE_SIZE, "stable rank, attention, 20%"):
        assert found[name]["less shuffled"] == estimate([0.0, 0.0, 0.0]), name


def test_a_training_that_failed_spoils_no_other() -> None:
    failed = trained(np.full(100, np.nan), np.full((2, 2), np.nan), np.full(100, np.nan))
    sound = trained(np.full(100, 4.0))
    assert compared([sound, failed, sound], [sound] * 3)[HELD_OUT]["less shuffled"]["mean"] == 0
    assert np.isfinite(lines_of([sound, failed], 50)["losses"]).all()
    nothing = {"curated": compared([failed], [sound]), "shuffled": compared([sound], [sound])}
    assert verdict(nothing, "curated", "shuffled") == [
        "There is no result for curated: its trainings, or those in random order, failed."
    ]


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((-0.11, -0.1, -0.09), "better beyond noise"),
        ((0.11, 0.1, 0.09), "worse beyond noise"),
        ((0.2, -0.1, 0.0), "no difference beyond noise"),
        ((-0.1,), "one training each, so the noise is unknown"),
    ],
)
def test_the_verdict_says_no_more_than_the_interval(differences: tuple[float, ...], said: str) -> None:
    flat = np.full(100, 4.0)
    shuffled = [trained(flat) for _ in differences]
    ours = [trained(flat, [[4, 4], [2.5 + of, 2.5 + of]]) for of in differences]
    spiky = [trained(flat, norms=np.r_[np.ones(50), 3.0, np.ones(49)]) for _ in differences]
    rows = {
        "original": compared(spiky, shuffled),
        "curated": compared(ours, shuffled),
        "random_sequences": compared(shuffled, shuffled),
    }
    first, second = verdict(rows, "curated", "random_sequences")
    assert said in first
    assert "jumps by original +0.000, curated +0.000" in second
    assert "original 3.00, curated 1.00, random_sequences 1.00 times its median" in second
    assert second.endswith("is seen in original.")


def test_a_seam_is_a_jump_of_the_loss_beyond_that_of_shuffles_too() -> None:
    level = [np.full(100, 4.0) + 0.01 * at for at in range(3)]
    jump = np.r_[np.zeros(50), np.full(2, 0.6), np.zeros(48)]
    shuffled = [trained(losses) for losses in level]
    rows = {
        "original": compared([trained(losses + jump) for losses in level], shuffled),
        "random_sequences": compared(shuffled, shuffled),
        "curated": compared(shuffled, shuffled),
    }
    second = verdict(rows, "curated", "random_sequences")[1]
    assert "jumps by original +0.600, curated +0.000" in second
    assert second.endswith("a seam is seen in original.")
    rows["original"] = rows["curated"]
    assert verdict(rows, "curated", "random_sequences")[1].endswith("a seam is seen in none.")
