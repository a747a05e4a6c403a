"""The rule by which an order beats shuffling, and what is said of it."""

from dataclasses import replace

import pytest

from dagster_divorder.core.measure import Seam, ShufflingCheck, WindowDeviation, beats_shuffling
from dagster_divorder.units import BATCHES

SIZES = {"sequence": 100, "batch": 1000, "10 batches": 10_000}
AT = WindowDeviation(
    window_tokens=0,
    positions=1,
    worst=0.4,
    mean=0.2,
    worst_tv=0.0,
    mean_tv=0.0,
    worst_start=0,
    partial=False,
    ideal=0.0,
    ideal_tv=0.0,
)


def windows(changed: dict[str, dict[str, float]] | None = None, traits: tuple[str, ...] = ("cluster",)):
    """Every window and trait alike, but for what is changed in a window."""
    return {
        name: {trait: replace(AT, window_tokens=size, **(changed or {}).get(name, {})) for trait in traits}
        for name, size in SIZES.items()
    }


def check(
    ours: dict[str, dict[str, float]], tokens: int = 100_000, **others: dict[str, float]
) -> ShufflingCheck:
    better = {name: {"mean": 0.1, "worst": 0.3} for name in ("batch", "10 batches")}
    return beats_shuffling(windows(better | ours), windows(others), ["cluster"], tokens, batches=BATCHES)


def test_smaller_in_every_window_passes_and_says_by_how_much():
    found = check({})
    assert found.passed and len(found.comparisons) == 3
    text = found.text()
    assert text.startswith("Better than shuffling")
    assert "any batch: cluster mean 0.5, worst 0.75" in text


@pytest.mark.parametrize(
    ("ours", "passed"),
    [
        ({"sequence": {"mean": 0.2 * 1.009, "worst": 0.9}}, True),
        ({"sequence": {"mean": 0.2 * 1.011}}, False),
        ({"batch": {"mean": 0.2, "worst": 0.3}}, False),
        ({"batch": {"mean": 0.1, "worst": 0.4}}, False),
        ({"10 batches": {"mean": 0.21, "worst": 0.3}}, False),
    ],
    ids=[
        "sequence: 1 % more in the mean",
        "sequence: more",
        "batch: equal mean",
        "batch: equal worst",
        "10 batches",
    ],
)
def test_the_rule_of_each_size(ours, passed):
    found = check(ours)
    assert found.passed == passed
    assert ("Not better than shuffling: cluster in any" in found.text()) != passed


def test_ties_at_zero_pass_and_other_ties_do_not():
    nothing = {"mean": 0.0, "worst": 0.0}
    assert check({"batch": nothing}, batch=nothing).passed
    assert check({"sequence": nothing}, sequence=nothing).passed
    found = check({"batch": {"mean": 0.1, "worst": 0.0}}, batch=nothing)
    assert not found.passed and "mean 0.1 (shuffling: 0), worst 0 (both)" in found.text()


@pytest.mark.parametrize(("tokens", "looked_at"), [(40_000, 3), (39_999, 2), (4000, 2), (3999, 1), (399, 0)])
def test_windows_that_do_not_fit_four_times_are_skipped_by_name(tokens, looked_at):
    found = check({}, tokens)
    assert [c.window for c in found.comparisons] == list(SIZES)[:looked_at]
    assert len(found.skipped) == 3 - looked_at
    assert found.passed
    assert ("not compared: 10 batches, since 10,000 tokens do not fit 4 times" in found.text()) == (
        looked_at < 3
    )
    assert ("Nothing was compared" in found.text()) == (looked_at == 0)


def test_it_says_where_shuffling_is_good_enough():
    small = {"mean": 0.004, "worst": 0.009}
    found = check({"10 batches": {"mean": 0.001, "worst": 0.002}}, **{"10 batches": small})
    assert found.good_enough == ("10 batches",)
    assert "shuffling is already good enough for any 10 batches" in found.text()
    assert "good enough" not in check({}).text()


def test_only_the_named_traits_are_looked_at():
    ours, shuffled = windows(traits=("cluster", "length")), windows(traits=("cluster", "length"))
    assert not beats_shuffling(ours, shuffled, ["length"], 10**6, batches=BATCHES).passed
    assert beats_shuffling(ours, shuffled, [], 10**6, batches=BATCHES).comparisons == ()


def seam_check(
    ours: tuple[float, float], shuffled: tuple[float, float], tokens: int = 100_000
) -> ShufflingCheck:
    """(mean, worst) across the seam; all other windows are better than shuffling's."""
    better = {name: {"mean": 0.1, "worst": 0.3} for name in SIZES}
    seams = tuple(
        {"cluster": Seam(1000, worst=worst, mean=mean, worst_tv=0.0, mean_tv=0.0, head_tail=0.0)}
        for mean, worst in (ours, shuffled)
    )
    return beats_shuffling(windows(better), windows(), ["cluster"], tokens, batches=BATCHES, seams=seams)


@pytest.mark.parametrize(
    ("ours", "passed"),
    [((0.1, 0.2), True), ((0.2, 0.4), True), ((0.21, 0.2), False), ((0.1, 0.41), False)],
    ids=["better", "equal", "worse mean", "worse worst"],
)
def test_a_seam_that_is_worse_than_shufflings_fails(ours, passed):
    found = seam_check(ours, (0.2, 0.4))
    assert found.passed == passed and len(found.comparisons) == 4
    assert ("Not better than shuffling: cluster in any batch across the seam" in found.text()) != passed
    assert "any batch across the seam: cluster mean" in found.text()


def test_a_seam_of_a_few_batches_is_not_looked_at():
    found = seam_check((0.5, 0.9), (0.2, 0.4), tokens=3999)
    assert found.passed and any("batch across the seam, since" in reason for reason in found.skipped)
