"""What DataLoaders, streaming `datasets` and the trainer of Hugging Face read, against their models."""

from __future__ import annotations

from collections.abc import Sized
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES, ascending, global_batches

pytestmark = pytest.mark.slow

EVERY = pytest.mark.parametrize(("world_size", "micro_batch"), RANKS_AND_MICRO_BATCHES)
ROWS = pytest.mark.parametrize("rows", [96, 101])
"""Whole batches of 16, and rows that fill neither a batch nor a step of all ranks."""


def by_lines(name: str, reading: Reading, path: object = "", **names: Any) -> np.ndarray:
    """The global batches of the loaders that a trainer's lines define."""
    ranks = []
    for rank in range(reading.world_size):
        own = {**names, "rank": rank}
        exec(TRAINERS[name].configuration(reading, path=str(path), prefix="train", sequence_length=8), own)
        ranks.append(own["loader"])
    if path:
        ranks = [[step["row"] for step in loader] for loader in ranks]
    return global_batches(ranks, reading)


@ROWS
@EVERY
def test_a_stateful_dataloader_reads_with_its_lines_what_the_model_says(
    rows: int, world_size: int, micro_batch: int
) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    from torch.utils.data import DistributedSampler

    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch)
    given = {"DistributedSampler": DistributedSampler, "StatefulDataLoader": loaders.StatefulDataLoader}
    read = by_lines("dataloader", reading, dataset=range(rows), **given)
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
    read = by_lines("hf-streaming", reading, path, **given)
    np.testing.assert_array_equal(read, np.arange(96).reshape(-1, 16))


@ROWS
@EVERY
def test_the_hugging_face_trainer_reads_in_order_what_the_model_says(
    world_size: int, micro_batch: int, rows: int
) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import DataLoader
    from transformers import Trainer, TrainingArguments

    # Without its lines it shuffles.
    assert TrainingArguments.train_sampling_strategy == "random"
    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch)
    dataset: Sized = range(rows)
    arguments = SimpleNamespace(train_sampling_strategy="sequential")
    sampler = Trainer._get_train_sampler(SimpleNamespace(args=arguments), dataset)  # type: ignore[arg-type]
    ranks = [
        accelerate.prepare_data_loader(
            DataLoader(dataset, micro_batch, sampler=sampler),  # type: ignore[arg-type]
            num_processes=world_size,
            process_index=rank,
            put_on_device=False,
            use_seedable_sampler=True,
            data_seed=42,
        )
        for rank in range(world_size)
    ]
    read = global_batches([list(loader) for loader in ranks], reading, step_on_rest=True)
    np.testing.assert_array_equal(ascending(TRAINERS["hf-trainer"].best(reading)), read)
