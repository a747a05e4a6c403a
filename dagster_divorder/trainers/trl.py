"""TRL's SFTTrainer, which samples as the Hugging Face Trainer does.

Two of its settings change the rows themselves: packing makes other rows of them, and max_length cuts them.
"""

from __future__ import annotations

from dagster_divorder.trainers import hf_trainer
from dagster_divorder.trainers.trainer import Trainer

TRAINER = Trainer(
    name="trl",
    title="TRL SFTTrainer",
    formats=("parquet",),
    default=hf_trainer.shuffled,
    best=hf_trainer.sequential,
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
    resumes=hf_trainer.TRAINER.resumes,
)
