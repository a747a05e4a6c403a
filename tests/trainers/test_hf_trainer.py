"""What the trainers of Hugging Face and TRL read, against their models."""

from __future__ import annotations

from collections.abc import Sized
from types import SimpleNamespace

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES, ascending, global_batches

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("rows", [96, 101])
@pytest.mark.parametrize(("world_size", "micro_batch"), RANKS_AND_MICRO_BATCHES)
def test_the_hugging_face_trainer_reads_in_order_what_the_model_says(
    world_size: int, micro_batch: int, rows: int
) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import DataLoader
    from transformers import Trainer

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


def test_the_hugging_face_trainer_shuffles_by_default_and_takes_its_lines() -> None:
    from transformers import TrainingArguments

    reading = Reading(rows=96, batch=16, world_size=2, micro_batch=2)
    lines = TRAINERS["hf-trainer"].configuration(reading, path="", prefix="train", sequence_length=8)
    arguments = eval(lines, {"TrainingArguments": TrainingArguments})
    assert arguments.train_sampling_strategy == "sequential"
    assert arguments.max_steps == 6
    assert TrainingArguments().train_sampling_strategy == "random"
