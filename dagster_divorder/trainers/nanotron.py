"""nanotron over datatrove's `.ds` files, which it takes in the order of their names as text.

Its release (0.4) reads a Nanoset: files and sequences are shuffled once by seeds that no setting changes, and each
epoch repeats them. Its main branch reads TokenizedBytes, in order unless shuffle_files is set, with Megatron's sampler.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.hf_streaming import file_rows
from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, consecutive, one_after_another

FILES_SEED, ROWS_SEED = 42, 1234


def _default(reading: Reading) -> Rows:
    files = file_rows(reading)
    rows = np.concatenate(
        [files[place] for place in np.random.default_rng(FILES_SEED).permutation(len(files))]
    )
    np.random.RandomState(ROWS_SEED).shuffle(rows)
    return consecutive(np.tile(rows, reading.passes), reading.batch)


TRAINER = Trainer(
    name="nanotron",
    title="nanotron (datatrove .ds)",
    formats=("ds",),
    default=_default,
    best=one_after_another,
    lines="""\
tokens:
  sequence_length: {window}
  micro_batch_size: {micro_batch}
  batch_accumulation_per_replica: {accumulation}
  train_steps: {steps}
data_stages:
  - data:
      dataset:
        dataset_folder: [{path}]
        shuffle_files: false
""",
    resumes="goes on exactly: consumed_train_samples counts sequences of all ranks",
)
