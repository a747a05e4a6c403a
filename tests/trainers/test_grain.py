"""What grain reads, against its models."""

from __future__ import annotations

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES, ascending, global_batches

pytestmark = pytest.mark.slow

TRAINER = TRAINERS["grain"]


def read_by_default(reading: Reading) -> np.ndarray:
    grain = pytest.importorskip("grain.python")
    ranks = []
    for rank in range(reading.world_size):
        sampler = grain.IndexSampler(
            num_records=reading.rows,
            shard_options=grain.ShardOptions(rank, reading.world_size),
            num_epochs=1,
        )
        ranks.append(
            grain.DataLoader(
                data_source=range(reading.rows),
                sampler=sampler,
                operations=[grain.Batch(reading.micro_batch, drop_remainder=True)],
                worker_count=reading.workers,
            )
        )
    return global_batches(ranks, reading)


def read_by_the_lines(reading: Reading) -> np.ndarray:
    grain = pytest.importorskip("grain")
    ranks = []
    for rank in range(reading.world_size):
        names = {"grain": grain, "source": range(reading.rows), "rank": rank}
        exec(TRAINER.configuration(reading, path="", prefix="train", sequence_length=8), names)
        ranks.append(names["loader"])
    return global_batches(ranks, reading)


@pytest.mark.parametrize("rows", [96, 101])
@pytest.mark.parametrize(("world_size", "micro_batch"), RANKS_AND_MICRO_BATCHES)
def test_grain_reads_what_the_models_say(rows: int, world_size: int, micro_batch: int) -> None:
    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch)
    np.testing.assert_array_equal(read_by_default(reading), ascending(TRAINER.default(reading)))
    np.testing.assert_array_equal(read_by_the_lines(reading), ascending(TRAINER.best(reading)))


def test_workers_mix_the_batches_of_the_default_only() -> None:
    reading = Reading(rows=101, batch=12, micro_batch=4, workers=2)
    read = read_by_default(reading)
    np.testing.assert_array_equal(read, ascending(TRAINER.default(reading)))
    assert read[0].tolist() != list(range(12))
    np.testing.assert_array_equal(read_by_the_lines(reading), ascending(TRAINER.best(reading)))
