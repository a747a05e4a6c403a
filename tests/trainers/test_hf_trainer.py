"""What the trainers of Hugging Face and TRL read, against their models."""

from __future__ import annotations

from collections.abc import Sized
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES, ascending, global_batches
from tests.trainers.test_trl import QUIET, tokens_and_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("rows", [96, 101])
@pytest.mark.parametrize(("world_size", "micro_batch"), RANKS_AND_MICRO_BATCHES)
@pytest.mark.parametrize("strategy", ["random", "sequential"])
def test_the_hugging_face_trainer_reads_what_the_models_say(
    strategy: str, world_size: int, micro_batch: int, rows: int
) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import DataLoader
    from transformers import Trainer

    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch, seed=42)
    dataset: Sized = range(rows)
    arguments = SimpleNamespace(train_sampling_strategy=strategy)
    sampler = Trainer._get_train_sampler(SimpleNamespace(args=arguments), dataset)  # type: ignore[arg-type]
    ranks = [
        accelerate.prepare_data_loader(
            DataLoader(dataset, micro_batch, sampler=sampler),  # type: ignore[arg-type]
            num_processes=world_size,
            process_index=rank,
            put_on_device=False,
            use_seedable_sampler=True,
            data_seed=reading.seed,
        )
        for rank in range(world_size)
    ]
    read = global_batches([list(loader) for loader in ranks], reading, step_on_rest=True)
    model = TRAINERS["hf-trainer"].best if strategy == "sequential" else TRAINERS["hf-trainer"].default
    np.testing.assert_array_equal(ascending(model(reading)), read)


def test_the_hugging_face_trainer_shuffles_by_default_and_takes_its_lines() -> None:
    from transformers import TrainingArguments

    reading = Reading(rows=96, batch=16, world_size=2, micro_batch=2)
    lines = TRAINERS["hf-trainer"].configuration(reading, path="", prefix="train", sequence_length=8)
    arguments = eval(lines, {"TrainingArguments": TrainingArguments})
    assert arguments.train_sampling_strategy == "sequential"
    assert arguments.max_steps == 6
    assert TrainingArguments().train_sampling_strategy == "random"


@pytest.mark.parametrize("way", ["default", "best"])
def test_trl_reads_what_the_models_say(way: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from torch.utils.data import DataLoader

    reading = Reading(rows=101, batch=16, world_size=2, micro_batch=2, seed=42)
    trainer = TRAINERS["trl"]
    config = partial(trl.SFTConfig, output_dir=str(tmp_path), **QUIET)
    lines = trainer.configuration(reading, path="", prefix="train", sequence_length=2)
    tokens, model = tokens_and_model(reading.rows)
    sft = trl.SFTTrainer(
        model=model,
        args=eval(lines, {"SFTConfig": config}) if way == "best" else config(per_device_train_batch_size=2),
        train_dataset=Dataset.from_dict({"input_ids": [[row, row] for row in range(reading.rows)]}),
        processing_class=tokens,
    )
    # One process is started here, so its loader is dealt to the ranks as accelerate does under torchrun.
    alone = sft.get_train_dataloader()
    ranks = [
        accelerate.prepare_data_loader(
            DataLoader(
                sft.train_dataset["input_ids"],
                alone.batch_sampler.batch_size,
                sampler=sft._get_train_sampler(),
            ),
            num_processes=reading.world_size,
            process_index=rank,
            put_on_device=False,
            use_seedable_sampler=True,
        )
        for rank in range(reading.world_size)
    ]
    read = [[[int(row) for row in step[0]] for step in loader] for loader in ranks]
    expected = trainer.best(reading) if way == "best" else trainer.default(reading)
    np.testing.assert_array_equal(ascending(expected), global_batches(read, reading, step_on_rest=True))
