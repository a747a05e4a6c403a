"""axolotl, which shuffles the records once as it prepares them, then samples as the Hugging Face Trainer does.

`curriculum_sampling` ends both. `sample_packing` makes rows of as many tokens as fit, so that a batch holds another
number of records. Records longer than `sequence_len` are left out, which shifts every batch behind them.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers import hf_trainer
from dagster_divorder.trainers.trainer import CONVERSATIONS, Reading, Rows, Trainer


def _default(reading: Reading) -> Rows:
    """The shuffle of `datasets`, in which the trainer's sampler numbers rows."""
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
    data_files: {path}
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
