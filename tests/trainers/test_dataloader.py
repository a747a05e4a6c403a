"""What a DataLoader with DistributedSampler reads, against its model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES, ascending, global_batches

pytestmark = pytest.mark.slow

ROWS = [96, 101]  # whole batches of 16, and rows that fill neither a batch nor a step of all ranks


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("world_size", "micro_batch"), RANKS_AND_MICRO_BATCHES)
def test_a_stateful_dataloader_reads_what_the_models_say(
    rows: int, world_size: int, micro_batch: int
) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    from torch.utils.data import DistributedSampler

    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch, seed=3)
    trainer, dataset = TRAINERS["dataloader"], range(rows)

    def default(rank: int) -> Any:
        sampler = DistributedSampler(dataset, world_size, rank, seed=3)
        return loaders.StatefulDataLoader(dataset, micro_batch, sampler=sampler)

    def best(rank: int) -> Any:
        names = {
            "dataset": dataset,
            "rank": rank,
            "DistributedSampler": DistributedSampler,
            "StatefulDataLoader": loaders.StatefulDataLoader,
        }
        exec(trainer.configuration(reading, path="", prefix="train", sequence_length=8), names)
        return names["loader"]

    for way, model in ((default, trainer.default), (best, trainer.best)):
        read = global_batches([list(way(rank)) for rank in range(world_size)], reading)
        np.testing.assert_array_equal(ascending(model(reading)), read)
