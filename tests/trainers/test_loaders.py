"""What DataLoaders, streaming `datasets`, Lightning and Hugging Face's trainer read, against their models; and what the
last two read by BalancedSampler."""

from __future__ import annotations

from collections.abc import Sized
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.utils.data import DataLoader

from dagster_divorder.torch import BalancedSampler
from dagster_divorder.trainers import TRAINERS, Reading
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES, ascending, dealt_by_accelerate, global_batches

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:tokens is not given")]

EVERY = pytest.mark.parametrize(("world_size", "micro_batch"), RANKS_AND_MICRO_BATCHES)
ROWS = pytest.mark.parametrize("rows", [96, 101])
"""Whole batches of 16, and rows that fill neither a batch nor a step of all ranks."""


def by_lines(name: str, reading: Reading, path: object = "", **names: Any) -> list[dict[str, Any]]:
    """What the lines of a trainer define on each rank."""
    ranks = [{**names, "rank": rank} for rank in range(reading.world_size)]
    for own in ranks:
        exec(TRAINERS[name].configuration(reading, path=str(path), prefix="train", sequence_length=8), own)
    return ranks


@ROWS
@EVERY
def test_a_stateful_dataloader_reads_with_its_lines_what_the_model_says(
    rows: int, world_size: int, micro_batch: int
) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    from torch.utils.data import DistributedSampler

    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch)
    given = {"DistributedSampler": DistributedSampler, "StatefulDataLoader": loaders.StatefulDataLoader}
    ranks = by_lines("dataloader", reading, dataset=range(rows), **given)
    read = global_batches([own["loader"] for own in ranks], reading)
    np.testing.assert_array_equal(ascending(TRAINERS["dataloader"].best(reading)), read)


def test_the_lines_for_streaming_keep_the_order(tmp_path: Path) -> None:
    """Of four files, a number that two ranks divide, in a folder whose name `datasets` takes for a pattern."""
    datasets = pytest.importorskip("datasets")
    distributed = pytest.importorskip("datasets.distributed")
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    path = tmp_path / "run [12]"
    path.mkdir()
    for file in range(4):
        datasets.Dataset.from_dict({"row": range(24 * file, 24 * file + 24)}).to_parquet(
            path / f"{file}.parquet"
        )
    given = {
        "load_dataset": datasets.load_dataset,
        "split_dataset_by_node": distributed.split_dataset_by_node,
        "DataLoader": loaders.StatefulDataLoader,
    }
    reading = Reading(rows=96, batch=16, world_size=2, micro_batch=2)
    ranks = [
        [step["row"] for step in own["loader"]] for own in by_lines("hf-streaming", reading, path, **given)
    ]
    np.testing.assert_array_equal(global_batches(ranks, reading), np.arange(96).reshape(-1, 16))


@ROWS
@EVERY
def test_the_hugging_face_trainer_reads_in_order_what_the_model_says(
    world_size: int, micro_batch: int, rows: int
) -> None:
    pytest.importorskip("accelerate.data_loader")
    from transformers import Trainer, TrainingArguments

    # Without its lines it shuffles.
    assert TrainingArguments.train_sampling_strategy == "random"
    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch)
    dataset: Sized = range(rows)
    arguments = SimpleNamespace(train_sampling_strategy="sequential")
    sampler = Trainer._get_train_sampler(SimpleNamespace(args=arguments), dataset)  # type: ignore[arg-type]
    read = global_batches(
        dealt_by_accelerate(dataset, micro_batch, sampler, reading), reading, step_on_rest=True
    )
    np.testing.assert_array_equal(ascending(TRAINERS["hf-trainer"].best(reading)), read)


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


@ROWS
@EVERY
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

    given = {"DistributedSampler": DistributedSampler, "StatefulDataLoader": loaders.StatefulDataLoader}
    ranks = by_lines("lightning", reading, dataset=dataset, Trainer=start, **given)
    best = [list(as_lightning_reads(own["trainer"], own["loader"])) for own in ranks]
    read = global_batches(best, reading, step_on_rest=True)
    np.testing.assert_array_equal(ascending(model.best(reading)), read)
    if world_size == 1:
        np.testing.assert_array_equal(
            ascending(model.default(reading)), global_batches([list(by_default)], reading, step_on_rest=True)
        )


EPOCH = 21
TABLE = {"topic": [["sea", "rail", "air"][row % 3] for row in range(EPOCH)]}


def sampler() -> BalancedSampler:
    return BalancedSampler(TABLE, "topic", batch_size=4)


def three_epochs() -> list[int]:
    one = sampler()
    return [row for _ in range(3) for row in one]


class Rows(nn.Module):
    """Takes row numbers, and says which."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.ones_(nn.Linear(1, 1).weight))
        self.read: list[int] = []

    def forward(self, row: Any) -> dict[str, Any]:
        self.read += row.tolist()
        return {"loss": (self.weight * row).mean()}


def test_the_hugging_face_trainer_reads_epochs_and_resumes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"row": range(EPOCH), **TABLE})

    class Balanced(transformers.Trainer):  # type: ignore[name-defined,misc]
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return sampler()

    def train(**resume: Any) -> list[int]:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            train_sampling_strategy="sequential",
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            num_train_epochs=3,
            save_steps=8,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        model = Rows()
        trainer = Balanced(model, arguments, train_dataset=data)
        trainer.train(**resume)
        return model.read

    whole = three_epochs()
    assert train() == whole
    # Of the second epoch, 21 + 2 x 4 rows are behind it.
    assert train(resume_from_checkpoint=str(tmp_path / "checkpoint-8")) == whole[29:]


def test_lightning_reads_epochs(tmp_path: Path) -> None:
    lightning, module = pytest.importorskip("lightning.pytorch"), recorder()
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=3, default_root_dir=tmp_path, **QUIET)
    trainer.fit(module, DataLoader(range(EPOCH), 4, sampler=sampler()))  # type: ignore[arg-type]
    assert [row for batch in module.seen for row in batch.tolist()] == three_epochs()
