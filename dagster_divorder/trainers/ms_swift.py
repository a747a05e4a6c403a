"""ms-swift: shuffles its records once while loading, then BatchSamplerShard shuffles by seed + epoch.

Rank r takes every W-th row of the sampler's order, so steps are consecutive rows of it; rows that do not fill all ranks
are dropped. `packing` fills rows by length, 1,000 records at a time. A record longer than `max_length` is dropped,
which shifts every later batch, or replaced by a random one.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import (
    CONVERSATIONS,
    Reading,
    Rows,
    Trainer,
    consecutive,
    torch_permutation,
)


def _batches(reading: Reading, *, shuffle: bool) -> Rows:
    order, rows = np.arange(reading.length), reading.length // reading.world_size * reading.world_size
    epochs = [order[:rows]] * reading.passes
    if shuffle:
        drawn = np.random.RandomState(reading.seed).randint(0, np.iinfo(np.int32).max)
        loaded = np.random.default_rng(drawn).permutation(order)
        epochs = [loaded[torch_permutation(rows, reading.seed + epoch)] for epoch in range(reading.passes)]
    return np.concatenate([consecutive(epoch, reading.batch, drop_last=False) for epoch in epochs])


TRAINER = Trainer(
    name="ms-swift",
    title="ms-swift",
    forms=(*CONVERSATIONS, "pairs"),
    default=lambda reading: _batches(reading, shuffle=True),
    best=lambda reading: _batches(reading, shuffle=False),
    lines="""\
--dataset {path}
--dataset_shuffle false
--train_dataloader_shuffle false
--split_dataset_ratio 0
--packing false
--per_device_train_batch_size {micro_batch}
--gradient_accumulation_steps {accumulation}
--max_steps {steps}
""",
    resumes="resumes exactly if the global batch is unchanged: it counts steps and skips as many batches",
)
