"""Rows for ranks that each read a contiguous part of the files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.trainers import rows_for_contiguous_ranks

counts = st.integers(1, 5)


@given(rows=st.integers(0, 400), world_size=counts, micro_batch=counts, workers=st.integers(0, 4))
def test_contiguous_ranks_are_read_in_the_plans_order(
    rows: int, world_size: int, micro_batch: int, workers: int
) -> None:
    """Rank by rank and worker by worker, a micro-batch of each worker in turn: one loop a letter."""
    file = rows_for_contiguous_ranks(rows, world_size=world_size, micro_batch=micro_batch, workers=workers)
    slices = file.reshape(world_size, max(workers, 1), -1, micro_batch)
    read = [
        row
        for turn in range(slices.shape[2])
        for worker in range(max(workers, 1))
        for rank in range(world_size)
        for row in slices[rank, worker, turn].tolist()
    ]
    assert read == list(range(len(file)))
    assert 0 <= rows - len(file) < world_size * micro_batch * max(workers, 1)
