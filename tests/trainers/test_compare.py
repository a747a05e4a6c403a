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
    same += [False] * (len(plan) - len(read))
    assert (kept.batches, kept.kept) == (len(plan), sum(same))
    assert (kept.first[0] if kept.first else None) == (same.index(False) if False in same else None)


@pytest.mark.parametrize(
    ("read", "plan", "missing"),
    [
        (PLAN, PLAN, 0),
        (PLAN[:, ::-1], PLAN, 0),
        (PLAN[:4], PLAN, 1),  # a whole batch was not read
        (PLAN[:4], np.where(PLAN > 17, -1, PLAN), 0),  # an incomplete one was not
        (np.where(PLAN > 17, 0, PLAN), np.where(PLAN > 17, -1, PLAN), 0),  # or was filled up
        (PLAN[:3], np.where(PLAN > 17, -1, PLAN), 1),
        (PLAN, PLAN[:4], 0),  # what the trainer fills up behind the plan
        (PLAN[:0], PLAN, 5),
    ],
)
def test_batches_left_out_and_batches_behind_the_plan(
    read: NDArray[np.int64], plan: NDArray[np.int64], missing: int
) -> None:
    kept = compare(read, plan)
    assert (kept.in_order, kept.batches - kept.kept) == (not missing, missing)
    if missing:
        assert kept.first is not None
        assert (kept.first[0], kept.first[2].tolist()) == (len(read), [])
    else:
        assert kept.first is None


def test_batches_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(10, 2\).*\(5, 4\).*for the same batch"):
        compare(PLAN.reshape(10, 2), PLAN)
