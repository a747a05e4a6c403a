"""torchtune's recipes: DistributedSampler under a StatefulDataLoader that drops incomplete batches.

Micro-batches that do not fill a step at an epoch's end are added to the next epoch's first step, unless
`max_steps_per_epoch` ends the epoch before. `packed` fills rows in the order of the records, so a batch holds another
number of records.
"""

from __future__ import annotations

from dataclasses import replace

from dagster_divorder.trainers import dataloader
from dagster_divorder.trainers.trainer import CONVERSATIONS

TRAINER = replace(
    dataloader.TRAINER,
    name="torchtune",
    title="torchtune",
    formats=(),
    forms=CONVERSATIONS,
    lines="""\
dataset:
  _component_: torchtune.datasets.chat_dataset
  source: {reader}
  data_files: {pattern}
  split: train
  conversation_column: messages
  conversation_style: openai
  packed: False
shuffle: False
batch_size: {micro_batch}
gradient_accumulation_steps: {accumulation}
max_steps_per_epoch: {steps}
""",
    resumes="its state counts a rank's own rows, so twice as many ranks resume at twice the position",
)
