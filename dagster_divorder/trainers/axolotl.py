"""axolotl: shuffles the records once during preparation, then samples as the Hugging Face Trainer does.

`curriculum_sampling` turns off both. `sample_packing` fills rows with as many tokens as fit, so a batch holds another
number of records. Records longer than `sequence_len` are dropped, which shifts every later batch.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers import hf_trainer
from dagster_divorder.trainers.trainer import CONVERSATIONS, Reading, Rows, Trainer


def _default(reading: Reading) -> Rows:
    """The shuffle of `datasets`; the trainer's sampler numbers the shuffled rows."""
    prepared = np.random.default_rng(reading.seed).permutation(reading.length)
    rows = hf_trainer.shuffled(reading)
    return np.where(rows < 0, -1, prepared[rows])


TRAINER = Trainer(
    name="axolotl",
    title="axolotl",
    forms=CONVERSATIONS,
    default=_default,
    best=hf_trainer.sequential,
    lines="""\
datasets:
  - path: {folder}
    ds_type: {reader}
    data_files: {pattern}
    split: train
    type: chat_template
shuffle_merged_datasets: false
curriculum_sampling: true
sample_packing: false
val_set_size: 0
micro_batch_size: {micro_batch}
gradient_accumulation_steps: {accumulation}
max_steps: {steps}
""",
    resumes=hf_trainer.TRAINER.resumes,
)
