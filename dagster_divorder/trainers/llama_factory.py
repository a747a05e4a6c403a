"""LLaMA-Factory: its trainers of all stages sample as the Hugging Face Trainer does.

`packing` fills rows from the longest conversation down, 1,000 at a time; `streaming` always shuffles; `val_size` splits
the records at random. So all three stay off.
"""

from __future__ import annotations

from dagster_divorder.trainers import hf_trainer
from dagster_divorder.trainers.trainer import CONVERSATIONS, Trainer

TRAINER = Trainer(
    name="llama-factory",
    title="LLaMA-Factory",
    forms=(*CONVERSATIONS, "pairs"),
    default=hf_trainer.shuffled,
    best=hf_trainer.sequential,
    lines="""\
# dataset_info.json names the files {path}
disable_shuffling: true
packing: false
streaming: false
val_size: 0
per_device_train_batch_size: {micro_batch}
gradient_accumulation_steps: {accumulation}
max_steps: {steps}
""",
    resumes=hf_trainer.TRAINER.resumes,
)
