"""Hugging Face Trainer over a map-style dataset: its sampler, then accelerate's BatchSamplerShard.

Micro-batch k goes to rank k mod W, so consecutive steps of all ranks are consecutive rows of the sampler, with any
number of workers. With several ranks the last step is filled up with the epoch's first rows. A last global batch of
fewer accumulated steps is an optimizer step too.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, consecutive, torch_permutation


def shuffled(reading: Reading) -> Rows:
    """A torch permutation, as accelerate's seedable sampler draws it."""
    return _filled(torch_permutation(reading.length, reading.seed), reading)


def sequential(reading: Reading) -> Rows:
    """The rows in stored order."""
    return _filled(np.arange(reading.length), reading)


def _filled(order: Rows, reading: Reading) -> Rows:
    step = reading.world_size * reading.micro_batch
    missing = -len(order) % step if reading.world_size > 1 else 0
    return consecutive(np.append(order, np.resize(order, missing)), reading.batch, drop_last=False)


TRAINER = Trainer(
    name="hf-trainer",
    title="Hugging Face Trainer",
    formats=("parquet",),
    default=shuffled,
    best=sequential,
    shares="micro-batches",
    lines="""\
TrainingArguments(
    train_sampling_strategy="sequential",
    per_device_train_batch_size={micro_batch},
    gradient_accumulation_steps={accumulation},
    max_steps={steps},
)
""",
    resumes="resumes exactly if the global batch is unchanged: it counts steps and skips as many batches",
)
SFT = Trainer(
    name="trl",
    title="TRL SFTTrainer",
    formats=("parquet",),
    default=shuffled,
    best=sequential,
    shares="micro-batches",
    lines="""\
SFTConfig(
    train_sampling_strategy="sequential",
    packing=False,
    max_length=None,
    padding_free=True,
    per_device_train_batch_size={micro_batch},
    gradient_accumulation_steps={accumulation},
    max_steps={steps},
)
""",
    resumes=TRAINER.resumes,
)
"""Packing would make other rows, and max_length cut them."""
