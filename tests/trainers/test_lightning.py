"""What Lightning's Trainer makes of a DataLoader, against its models."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES, ascending, global_batches

pytestmark = pytest.mark.slow

QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def recorder() -> Any:
    """A module of one weight, and in `seen` the batches that it was trained on."""
    import torch

    lightning = pytest.importorskip("lightning.pytorch")

    class Recorder(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.seen: list[Any] = []

        def training_step(self, batch: Any) -> torch.Tensor:
            self.seen.append(batch)
            return self.weight.sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Recorder()


def as_lightning_reads(trainer: Any, loader: Any) -> Any:
    """The loader that a rank's training loop goes through."""
    from lightning.pytorch.trainer.connectors.data_connector import _process_dataloader
    from lightning.pytorch.trainer.states import RunningStage, TrainerFn

    return _process_dataloader(trainer, TrainerFn.FITTING, RunningStage.TRAINING, loader)


@pytest.mark.parametrize("rows", [96, 101])
@pytest.mark.parametrize(("world_size", "micro_batch"), RANKS_AND_MICRO_BATCHES)
def test_lightning_shuffles_for_several_ranks_and_reads_with_its_lines_what_the_model_says(
    rows: int, world_size: int, micro_batch: int
) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    from torch.utils.data import DataLoader, DistributedSampler

    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch)
    model, dataset = TRAINERS["lightning"], range(rows)
    start = partial(
        lightning.Trainer,
        accelerator="cpu",
        devices=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        **QUIET,
    )

    by_default = as_lightning_reads(start(), DataLoader(dataset, micro_batch, shuffle=False))
    assert (list(by_default.sampler) == [*dataset]) == (world_size == 1)

    def best(rank: int) -> Any:
        names = {
            "dataset": dataset,
            "rank": rank,
            "DistributedSampler": DistributedSampler,
            "StatefulDataLoader": loaders.StatefulDataLoader,
            "Trainer": start,
        }
        exec(model.configuration(reading, path="", prefix="train", sequence_length=8), names)
        return as_lightning_reads(names["trainer"], names["loader"])

    read = global_batches([list(best(rank)) for rank in range(world_size)], reading, step_on_rest=True)
    np.testing.assert_array_equal(ascending(model.best(reading)), read)
    if world_size == 1:
        np.testing.assert_array_equal(
            ascending(model.default(reading)), global_batches([list(by_default)], reading, step_on_rest=True)
        )
