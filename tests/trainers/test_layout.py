"""Rows for ranks that each read a contiguous part of the files."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.trainers import TRAINERS, Reading, rows_for_contiguous_ranks

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


@given(
    steps=st.integers(1, 12),
    world_size=st.sampled_from([1, 2, 4]),
    micro_batch=st.sampled_from([1, 2, 4]),
    workers=st.integers(0, 3),
    rest=st.integers(0, 30),
)
def test_trainers_of_contiguous_ranks_read_rows_that_lie_for_them_in_the_plans_order(
    steps: int, world_size: int, micro_batch: int, workers: int, rest: int
) -> None:
    step = world_size * micro_batch * max(workers, 1)
    for name, trainer in TRAINERS.items():
        if trainer.parts:
            used = 0 if name == "torchtitan" else workers  # its lines set no workers
            file = rows_for_contiguous_ranks(
                steps * step + rest, world_size=world_size, micro_batch=micro_batch, workers=used
            )
            reading = Reading(
                rows=len(file),
                batch=world_size * micro_batch,
                world_size=world_size,
                micro_batch=micro_batch,
                workers=workers,
            )
            read = np.sort(file[trainer.best(reading)], axis=1)
            np.testing.assert_array_equal(read.reshape(-1), np.arange(len(file)))
