"""The rule by which an order beats shuffling, and what is said of it."""

from typing import Any

import pytest

from dagster_divorder.core.measure import WINDOWS, ShufflingCheck, beats_shuffling
from dagster_divorder.core.measure.shuffling_check import SEAM

BATCH = 10
OURS, SHUFFLED, NOTHING = (0.1, 0.3), (0.2, 0.4), (0.0, 0.0)
"""(mean, worst) share error."""
Errors = dict[str, tuple[float, float]]


def figures(others: tuple[float, float], changed: Errors, sequences: int = 1000) -> dict[str, Any]:
    """Every window alike, but for what is changed in one."""
    errors = {
        window: {"cluster": dict(zip(("mean", "worst"), changed.get(window, others), strict=True))}
        for window in (*WINDOWS, SEAM)
    }
    counts = {"sequences": sequences, "batches": max(10, sequences // BATCH), "batch": BATCH}
    return {**counts, "windows": errors, "seam": errors[SEAM]}


def check(ours: Errors, shuffled: Errors | None = None, sequences: int = 1000) -> ShufflingCheck:
    """Of an order that is better than shuffling wherever nothing else is given."""
    return beats_shuffling(
        figures(OURS, ours, sequences), figures(SHUFFLED, shuffled or {}, sequences), ["cluster"]
    )


def test_smaller_in_every_window_passes_and_says_by_how_much():
    found = check({})
    assert found.passed and len(found.comparisons) == 4 and not found.failed and not found.notes
    assert found.rows()[1] == {
        "window": "batch",
        "trait": "cluster",
        "mean share error, points": "10.00, shuffled 20.00",
        "worst share error, points": "30.00, shuffled 40.00",
        "better": "yes",
    }


@pytest.mark.parametrize(
    ("window", "ours", "shuffled", "passed"),
    [
        ("sequence", (0.2 * 1.009, 0.9), SHUFFLED, True),
        ("sequence", (0.2 * 1.011, 0.4), SHUFFLED, False),
        ("sequence", NOTHING, NOTHING, True),
        ("batch", (0.2, 0.3), SHUFFLED, False),
        ("batch", (0.1, 0.4), SHUFFLED, False),
        ("batch", NOTHING, NOTHING, True),
        ("batch", (0.1, 0.0), NOTHING, False),
        ("10 batches", (0.21, 0.3), SHUFFLED, False),
        (SEAM, SHUFFLED, SHUFFLED, True),
        (SEAM, (0.21, 0.2), SHUFFLED, False),
        (SEAM, (0.1, 0.41), SHUFFLED, False),
    ],
)
def test_the_rule_of_each_size(window, ours, shuffled, passed):
    found = check({window: ours}, {window: shuffled})
    assert found.passed == passed
    assert found.failed == ({} if passed else {"cluster": [window]})


@pytest.mark.parametrize(("sequences", "looked_at"), [(400, 4), (399, 3), (40, 3), (39, 1), (3, 0)])
def test_windows_that_do_not_fit_four_times_are_skipped_by_name(sequences, looked_at):
    found = check({}, sequences=sequences)
    assert found.passed and len(found.comparisons) == looked_at
    assert len(found.skipped) == 4 - looked_at
    said = "Not compared: 10 batches, since 100 sequences do not fit 4 times" in " ".join(found.notes)
    assert said == (looked_at < 4)
    assert any(f"{SEAM}, since" in reason for reason in found.skipped) == (looked_at < 3)


def test_it_says_where_shuffling_is_good_enough():
    found = check({"10 batches": (0.001, 0.002)}, dict.fromkeys(("sequence", "10 batches"), (0.004, 0.009)))
    assert found.good_enough == ("10 batches",)
    assert "Shuffling is already good enough for any 10 batches" in found.notes[0]


def test_neither_other_traits_nor_few_batches_are_compared():
    same = figures(SHUFFLED, {})
    assert beats_shuffling(same, same, []).comparisons == ()
    few = same | {"batches": 9}
    assert beats_shuffling(few, few, ["cluster"]).skipped == ("9 batches are fewer than 10",)
