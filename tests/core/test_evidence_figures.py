"""Figures of trainings: differences with intervals as Student has them, the seam, bumps, and what is said of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dagster_divorder.core.evidence.training_evidence import (
    NOTABLE,
    PLACES,
    POWER,
    Trained,
    curriculum_verdict,
    estimate,
    is_beyond_noise,
    largest_bump,
    order_figures,
    pairs_to_show,
    power,
    schedule_figures,
    seam,
    sensitivity,
    source_figures,
    verdict,
)

ATTENTION = np.array([True, False])


def trained(
    losses: Any, heldout: Any = ((5.0, 4.0), (3.0, 2.0)), norms: Any = None, **changes: Any
) -> Trained:
    losses = np.asarray(losses, np.float32)
    made = Trained(
        losses=losses,
        norms=np.ones_like(losses) if norms is None else np.asarray(norms, np.float32),
        heldout=np.array(heldout),
        averaged=np.full((2, len(np.atleast_2d(heldout)[0])), 3.0),
        remembered=np.linspace(4, 3, 10),
        ranks=np.array([[2.0, 3.0], [4.0, 5.0]]),
        noise=np.array([0.5, 1.0]),
        failed=-1,
    )
    return made._replace(**changes)


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


def test_noise_is_called_a_difference_once_in_twenty_times() -> None:
    draws = np.random.default_rng(0).standard_normal((4000, 3))
    assert np.mean([is_beyond_noise(estimate(draw)) for draw in draws]) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize(("pairs", "spread"), [(2, 0.002), (4, 0.005), (10, 0.01), (35, 0.02)])
def test_power_is_how_often_simulated_pairs_show_a_difference(pairs: int, spread: float) -> None:
    draws = np.random.default_rng(0).normal(NOTABLE, spread, (4000, pairs))
    shown = np.mean([(estimate(draw)["low"] or 0.0) > 0 for draw in draws])
    assert power(pairs, NOTABLE, spread) == pytest.approx(shown, abs=0.025)


@pytest.mark.parametrize("spread", [0.0005, 0.003, 0.01, 0.04, 0.3])
def test_fewer_pairs_than_are_needed_show_a_difference_less_often(spread: float) -> None:
    needed = pairs_to_show(NOTABLE, spread)
    assert needed is not None and power(needed, NOTABLE, spread) >= POWER
    assert needed == 2 or power(needed - 1, NOTABLE, spread) < POWER
    # By the normal quantiles, which Student's are above of few pairs.
    assert needed >= ((1.96 + 0.8416) * spread / NOTABLE) ** 2


def test_equal_trainings_need_two_pairs_and_wild_ones_are_given_up() -> None:
    assert pairs_to_show(NOTABLE, 0.0) == 2
    assert pairs_to_show(NOTABLE, 1e3) is None


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ((-0.11, -0.1, -0.09), ""),
        ((-0.1,), ""),
        ((math.nan, math.nan), ""),
        (
            (0.001, -0.001, 0.0),
            "These 3 seeds show a difference of 0.01 nats in 80% of such comparisons, by the spread",
        ),
        ((0.0, 0.0), "These 2 seeds show"),
        (
            (0.02, -0.01, 0.0, math.nan),
            "21 seeds (evidence.seeds, now 3) show a difference of 0.01 nats in 80% of",
        ),
        ((90.0, -90.0), "More than 1,000,000 seeds show"),
    ],
)
def test_what_would_show_a_difference_is_said_where_none_is_beyond_noise(
    differences: tuple[float, ...], said: str
) -> None:
    figures = {"less shuffled": estimate(differences), "pairs": int(np.isfinite(differences).sum())}
    sentence = sensitivity(figures, 1_000)
    assert sentence.startswith(said) and bool(sentence) == bool(said)
    assert ("21,000 tokens of training" in sentence) == said.startswith("21")


def test_the_seam_of_a_dip_and_a_spike() -> None:
    losses = np.r_[np.full(95, 5.0), np.full(5, 3.0), np.full(5, 4.5), np.full(95, 3.0)]
    norms = np.r_[np.full(100, 2.0), 6.0, np.full(99, 9.0)]
    found = seam(trained(losses, norms=norms), 100)
    assert (found.before, found.after, found.spike) == (3.0, 4.5, 3.0)


def test_a_bump_is_found_where_it_is_and_not_in_the_first_tenth() -> None:
    smooth = np.linspace(6, 3, 1000)
    bumpy = smooth.copy()
    bumpy[:50] += 9
    bumpy[700:720] += 1
    height, where = largest_bump([bumpy, bumpy + 0.1, smooth * np.nan], [smooth, smooth, smooth])
    assert height["mean"] == pytest.approx(1.05) and height["error"] == pytest.approx(0.05)
    assert abs(where - 0.71) < 2 / PLACES


def figures(ours: list[Trained], shuffled: list[Trained], epoch: int = 50) -> dict[str, Any]:
    return order_figures(ours, shuffled, epoch, ATTENTION)


def test_figures_are_paired_by_training() -> None:
    shuffled = [trained(np.full(100, 4.0), [[5, 5], [level, level]]) for level in (1.0, 2.0, 9.0)]
    ours = [trained(np.full(100, 4.0), [[5, 5], [level - 0.5, level - 0.5]]) for level in (1.0, 2.0, 9.0)]
    found = figures(ours, shuffled)
    # Each less its own: no noise is left, though the trainings differ widely.
    assert found["less shuffled"]["mean"] == pytest.approx(-0.5)
    assert is_beyond_noise(found["less shuffled"])
    assert found["held-out"]["error"] > 1
    assert found["stable rank, attention, 20%"]["mean"] == 2.0
    assert found["stable rank, feed-forward, 100%"]["mean"] == 5.0
    assert found["forgotten"]["mean"] == pytest.approx(-1.0)
    # Whatever is shown of an order is shown beside shuffling, with an interval.
    for name in ("spike", "noise", "forgotten", "stable rank, attention, 20%"):
        assert found[f"{name}, less shuffled"] == estimate([0.0, 0.0, 0.0]), name
    assert found["bump"] == estimate([0.0, 0.0, 0.0])
    assert "spike" not in figures(ours, shuffled, epoch=100)
    (first, second) = source_figures(ours, shuffled, ["a", "b"])
    assert (first["source"], second["less shuffled"]["mean"]) == ("a", pytest.approx(-0.5))


def test_a_training_that_failed_spoils_no_other() -> None:
    failed = trained(np.full(100, np.nan), np.full((2, 2), np.nan), np.full(100, np.nan), failed=0)
    sound = trained(np.full(100, 4.0))
    found = figures([sound, failed, sound], [sound, sound, sound])
    assert found["less shuffled"]["mean"] == 0
    assert np.isfinite(found["losses"]).all()
    nothing = {"curated": figures([failed], [sound]), "shuffled": figures([sound], [sound])}
    assert "There is no result for curated" in verdict(nothing, "curated", "shuffled")[0]


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
        "original": figures(spiky, shuffled),
        "curated": figures(ours, shuffled),
        "random_sequences": figures(shuffled, shuffled),
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
        "original": figures([trained(losses + jump) for losses in level], shuffled),
        "random_sequences": figures(shuffled, shuffled),
        "curated": figures(shuffled, shuffled),
    }
    second = verdict(rows, "curated", "random_sequences")[1]
    assert "jumps by original +0.600, curated +0.000" in second
    assert second.endswith("a seam is seen in original.")
    rows["original"] = rows["curated"]
    assert verdict(rows, "curated", "random_sequences")[1].endswith("a seam is seen in none.")


def ended(last: list[float], averages: list[float] | None = None) -> list[Trained]:
    """Trainings with these held-out losses at the end, of the last weights and of both averages of them."""
    of_average = last if averages is None else averages
    return [
        trained(np.full(100, 4.0), [[4.0, 4.0], [loss, loss + 2]])._replace(
            averaged=np.array([[mean, mean + 2], [mean + 0.5, mean + 2.5]])
        )
        for loss, mean in zip(last, of_average, strict=True)
    ]


ALONG = {
    ("random_sequences", "cosine"): ended([3.00, 3.10, 3.20]),
    ("random_sequences", "constant"): ended([3.30, 3.40, 3.50], [2.90, 3.01, 3.10]),
    ("saw", "cosine"): ended([3.20, 3.31, 3.40]),
    ("saw", "constant"): ended([3.30, 3.39, 3.51], [3.00, 3.12, 3.20]),
    ("saw_balanced", "cosine"): ended([3.10, 3.21, 3.30]),
    ("saw_balanced", "constant"): ended([3.30, 3.42, 3.49], [2.80, 2.90, 3.00]),
}


def along(trainings: dict[tuple[str, str], list[Trained]]) -> list[dict[str, Any]]:
    names = {order for order, _ in trainings}
    return schedule_figures(
        trainings, dict.fromkeys(names, "random_sequences"), {"saw_balanced": "saw"} if "saw" in names else {}
    )


def test_every_schedule_and_average_is_held_against_its_own_shuffle_and_the_best_one() -> None:
    rows = {(row["order"], row["schedule"], row["weights"]): row for row in along(ALONG)}
    assert len(rows) == 6 * 3
    saw = rows["saw", "constant", "average"]
    assert saw["held-out"]["mean"] == pytest.approx(np.mean([4.0, 4.12, 4.2]))
    assert saw["less shuffled"] == pytest.approx(estimate([0.1, 0.11, 0.1]))
    assert "less windows shuffled" not in saw
    # Shuffled sequences do best with the average at a constant rate.
    cosine = rows["saw", "cosine", "last weights"]
    assert cosine["less the best shuffled"]["mean"] == pytest.approx(np.mean([0.30, 0.30, 0.30]))
    ours = rows["saw_balanced", "cosine", "last weights"]
    assert ours["less windows shuffled"]["mean"] == pytest.approx(-0.1)
    own = rows["random_sequences", "constant", "EMA"]
    assert own["less shuffled"] == estimate([0.0, 0.0, 0.0])


def test_sentences_on_curricula_say_no_more_than_the_intervals() -> None:
    orders = [{"order": "saw", **figures(ended([3.0, 3.1, 3.2]), ended([3.0, 3.1, 3.2]))}]
    names = ("saw", "saw_balanced")
    said = curriculum_verdict(along(ALONG), orders, names, "quality")
    assert said[0].startswith(
        "Along quality, learning rate cosine, less shuffled: worse beyond noise: saw +0.2033 ("
    )
    assert said[1].startswith("Windows balanced less shuffled: better beyond noise: saw_balanced -0.1000 (")
    assert said[2] == (
        "Along quality, learning rate constant, less shuffled: no difference beyond noise: saw, saw_balanced."
    )
    assert said[3] == "Windows balanced less shuffled: no difference beyond noise: saw_balanced."
    assert said[4].startswith(
        "random_sequences does best with learning rate constant, average: 4.0033; of 12 results along quality the "
        "best is saw_balanced with constant, average: 3.9000, difference -0.1033 ("
    )
    assert said[4].endswith(": better beyond noise.") and len(said) == 5
    one = {key: several[:1] for key, several in ALONG.items()}
    alone = " ".join(curriculum_verdict(along(one), orders, names, "quality"))
    assert alone.count("one training each, so the noise is unknown") == 5
    assert "beyond noise:" not in alone and "(" not in alone
    assert curriculum_verdict(along(ALONG), orders, (), "") == []


def test_failed_trainings_and_those_without_averages_are_left_out_of_the_sentences() -> None:
    nothing = [one._replace(averaged=np.full((2, 2), np.nan)) for one in ended([3.0, 3.1])]
    failed = [one._replace(heldout=np.full((2, 2), np.nan)) for one in nothing]
    rows = along(
        {("random_sequences", "cosine"): nothing, ("rise", "cosine"): failed, ("saw", "cosine"): nothing}
    )
    said = curriculum_verdict(rows, [], ("rise", "saw"), "quality")
    assert said[0] == "Along quality, learning rate cosine, less shuffled: no difference beyond noise: saw."
    assert "4.0500; of 1 results along quality the best is saw with cosine, last weights: 4.0500" in said[1]
    assert curriculum_verdict(along({("random_sequences", "cosine"): failed}), [], ("saw",), "quality") == []


def test_a_jump_at_the_seam_of_a_curriculum_is_said() -> None:
    level = [np.full(100, 4.0) + 0.01 * at for at in range(3)]
    jump = np.r_[np.zeros(50), np.full(2, 0.6), np.zeros(48)]
    shuffled = [trained(losses) for losses in level]
    orders = [
        {"order": "rise", **figures([trained(losses + jump) for losses in level], shuffled)},
        {"order": "saw", **figures(shuffled, shuffled)},
    ]
    rows = along(
        {("random_sequences", "cosine"): shuffled, ("rise", "cosine"): shuffled, ("saw", "cosine"): shuffled}
    )
    said = curriculum_verdict(rows, orders, ("rise", "saw"), "quality")
    assert said[-1].startswith(
        "At the seam the loss jumps by more than that of shuffled sequences: rise +0.600 ("
    )
    assert "saw" not in said[-1]
