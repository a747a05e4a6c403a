"""The rule by which an order beats shuffling, and what is said of it."""

from typing import Any

import pytest

from dagster_divorder.core.measure import WINDOWS, ShufflingCheck, beats_shuffling

BATCH = 10
AT = {"mean": 0.2, "worst": 0.4}


def figures(
    changed: dict[str, dict[str, float]] | None = None,
    sequences: int = 1000,
    traits: tuple[str, ...] = ("cluster",),
    seam: dict[str, float] = AT,
) -> dict[str, Any]:
    """Every window and trait alike, but for what is changed in a window."""
    return {
        "sequences": sequences,
        "batches": max(10, sequences // BATCH),
        "batch": BATCH,
        "windows": {name: dict.fromkeys(traits, (changed or {}).get(name, AT)) for name in WINDOWS},
        "seam": dict.fromkeys(traits, seam),
    }


def check(
    ours: dict[str, dict[str, float]], sequences: int = 1000, **others: dict[str, float]
) -> ShufflingCheck:
    better = {name: {"mean": 0.1, "worst": 0.3} for name in ("batch", "10 batches")}
    return beats_shuffling(figures(better | ours, sequences), figures(others), ["cluster"], seam=False)


def test_smaller_in_every_window_passes_and_says_by_how_much():
    found = check({})
    assert found.passed and len(found.comparisons) == 3 and not found.failed
    assert found.rows()[1] == {
        "window": "batch",
        "trait": "cluster",
        "mean share error, points": "10.00, shuffled 20.00",
        "worst share error, points": "30.00, shuffled 40.00",
        "better": "yes",
    }


@pytest.mark.parametrize(
    ("ours", "passed"),
    [
        ({"sequence": {"mean": 0.2 * 1.009, "worst": 0.9}}, True),
        ({"sequence": {"mean": 0.2 * 1.011, "worst": 0.4}}, False),
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
    assert found.failed == ({} if passed else {"cluster": [*ours]})


def test_ties_at_zero_pass_and_other_ties_do_not():
    nothing = {"mean": 0.0, "worst": 0.0}
    assert check({"batch": nothing}, batch=nothing).passed
    assert check({"sequence": nothing}, sequence=nothing).passed
    assert not check({"batch": {"mean": 0.1, "worst": 0.0}}, batch=nothing).passed


@pytest.mark.parametrize(("sequences", "looked_at"), [(400, 3), (399, 2), (40, 2), (39, 1), (3, 0)])
def test_windows_that_do_not_fit_four_times_are_skipped_by_name(sequences, looked_at):
    found = check({}, sequences)
    assert [c.window for c in found.comparisons] == list(WINDOWS)[:looked_at]
    assert len(found.skipped) == 3 - looked_at
    assert found.passed
    said = "Not compared: 10 batches, since 100 sequences do not fit 4 times" in " ".join(found.notes)
    assert said == (looked_at < 3)


def test_it_says_where_shuffling_is_good_enough():
    small = {"mean": 0.004, "worst": 0.009}
    found = check({"10 batches": {"mean": 0.001, "worst": 0.002}}, **{"10 batches": small})
    assert found.good_enough == ("10 batches",)
    assert "Shuffling is already good enough for any 10 batches" in found.notes[0]
    assert not check({}).notes


def test_only_the_named_traits_are_looked_at():
    both = figures(traits=("cluster", "length"))
    assert not beats_shuffling(both, both, ["length"]).passed
    assert beats_shuffling(both, both, []).comparisons == ()


def test_few_batches_are_not_compared():
    few = figures() | {"batches": 9}
    assert beats_shuffling(few, few, ["cluster"]).skipped == ("9 batches are fewer than 10",)


def seam_check(
    ours: tuple[float, float], shuffled: tuple[float, float], sequences: int = 1000
) -> ShufflingCheck:
    """(mean, worst) across the seam; all other windows are better than shuffling's."""
    better = {name: {"mean": 0.1, "worst": 0.3} for name in WINDOWS}
    mine, others = (dict(zip(("mean", "worst"), of, strict=True)) for of in (ours, shuffled))
    return beats_shuffling(figures(better, sequences, seam=mine), figures(seam=others), ["cluster"])


@pytest.mark.parametrize(
    ("ours", "passed"),
    [((0.1, 0.2), True), ((0.2, 0.4), True), ((0.21, 0.2), False), ((0.1, 0.41), False)],
    ids=["better", "equal", "worse mean", "worse worst"],
)
def test_a_seam_that_is_worse_than_shufflings_fails(ours, passed):
    found = seam_check(ours, (0.2, 0.4))
    assert found.passed == passed and len(found.comparisons) == 4
    assert found.failed == ({} if passed else {"cluster": ["batch across the seam"]})


def test_a_seam_of_a_few_batches_is_not_looked_at():
    found = seam_check((0.5, 0.9), (0.2, 0.4), sequences=39)
    assert found.passed and any("batch across the seam, since" in reason for reason in found.skipped)
