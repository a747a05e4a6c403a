"""nanotron (its main branch) over datatrove's `.ds` files, with Megatron's sampler.

Files are sorted by name as text and, unless shuffle_files is set, read one after another, once.
"""

from __future__ import annotations

from dagster_divorder.trainers.trainer import Trainer, in_order

TRAINER = Trainer(
    name="nanotron",
    title="nanotron (datatrove .ds)",
    formats=("ds",),
    default=in_order,
    shares="micro-batches",
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
    reads_labels=False,
    resumes="resumes exactly: consumed_train_samples counts sequences of all ranks",
)
