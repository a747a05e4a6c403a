"""What `compare` says of batches held against a plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.trainers import compare

PLAN = np.arange(20).reshape(5, 4)


@given(count=st.integers(1, 12), size=st.integers(1, 6), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_it_counts_as_a_loop_over_sets_does(count: int, size: int, seed: int, data: st.DataObject) -> None:
    """Rows that come several times among them, as they do where epochs are read from an index."""
    random = np.random.default_rng(seed)
    plan = random.integers(0, 2 * count, (count, size))
    read = plan.copy()
    for batch in data.draw(st.lists(st.integers(0, count - 1), max_size=3)):
        read[batch] = random.integers(0, 2 * count, size)
    read = random.permuted(read, axis=1)[: data.draw(st.integers(0, count))]

    kept = compare(read, plan)
    same = [sorted(a) == sorted(b) for a, b in zip(read.tolist(), plan.tolist(), strict=False)]
    assert (kept.batches, kept.kept) == (len(read), sum(same))
    assert (kept.first.batch if kept.first else None) == (same.index(False) if False in same else None)
    ours, theirs = read.ravel().tolist(), plan.ravel().tolist()
    surplus = [ours.count(row) - theirs.count(row) for row in {*ours, *theirs}]
    assert kept.repeated == sum(max(more, 0) for more in surplus)
    assert kept.never_read == sum(max(-more, 0) for more in surplus)


def test_the_first_difference_is_shown() -> None:
    read = PLAN.copy()
    read[2] = [8, 9, 1, 2]
    kept = compare(read, PLAN)
    assert not kept.in_order
    assert (kept.batches, kept.kept, kept.repeated, kept.never_read) == (5, 4, 2, 2)
    assert kept.first is not None
    assert kept.first.batch == 2
    assert kept.first.expected.tolist() == [8, 9, 10, 11]
    assert kept.first.read.tolist() == [1, 2, 8, 9]
    assert kept.first.common == 2


@pytest.mark.parametrize(
    ("read", "plan", "in_order", "missing", "extra"),
    [
        (PLAN, PLAN, True, 0, 0),
        (PLAN[:, ::-1], PLAN, True, 0, 0),
        (PLAN[:4], PLAN, False, 1, 0),  # a whole batch was not read
        (PLAN[:4], np.where(PLAN > 17, -1, PLAN), True, 0, 0),  # an incomplete one was not
        (np.where(PLAN > 17, 0, PLAN), np.where(PLAN > 17, -1, PLAN), True, 0, 0),  # or was filled up
        (PLAN[:3], np.where(PLAN > 17, -1, PLAN), False, 1, 0),
        (PLAN, PLAN[:4], True, 0, 1),  # what the trainer fills up behind the plan
        (PLAN[:0], PLAN, False, 5, 0),
    ],
)
def test_batches_left_out_and_batches_behind_the_plan(
    read: NDArray[np.int64], plan: NDArray[np.int64], in_order: bool, missing: int, extra: int
) -> None:
    kept = compare(read, plan)
    assert (kept.in_order, kept.missing_batches, kept.extra_batches) == (in_order, missing, extra)
    assert kept.first is None


def test_batches_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(10, 2\).*\(5, 4\).*for the same batch"):
        compare(PLAN.reshape(10, 2), PLAN)
