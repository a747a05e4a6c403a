"""torchtitan's HuggingFaceTextDataLoader over a map-style dataset.

Each rank reads a contiguous slice of the rows, and each of its n workers the whole slice, so every row is read n times:
keep num_workers = 0.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, from_ranks, from_workers


def _batches(reading: Reading) -> Rows:
    parts = np.array_split(np.arange(reading.length), reading.world_size)
    ranks = [from_workers([part] * max(reading.workers, 1), reading.micro_batch) for part in parts]
    return from_ranks(ranks, reading)[: reading.steps]


TRAINER = Trainer(
    name="torchtitan",
    title="torchtitan (map-style dataset)",
    formats=("parquet",),
    default=_batches,
    best=lambda reading: _batches(replace(reading, workers=0)),
    shares="micro-batches",
    lines="""\
DATASETS["plan"] = DatasetConfig(
    path="{pattern}",
    loader=lambda path: load_dataset("parquet", data_dir=path, split="train"),
    sample_processor=lambda row: row["input_ids"],  # with a tokenizer whose encode returns what it is given
)
dataloader = HuggingFaceTextDataLoader.Config(dataset="plan", num_workers=0)
training = TrainingConfig(seq_len={window}, local_batch_size={micro_batch}, global_batch_size={batch}, steps={steps})
""",
    reads_labels=False,
    joins_rows=True,
    resumes="refuses: it asserts the same data-parallel degree",
    parts="ranks",
)
