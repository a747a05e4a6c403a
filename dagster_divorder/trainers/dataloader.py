"""A PyTorch DataLoader, or torchdata's StatefulDataLoader, with DistributedSampler; incomplete batches are dropped.

Rank r takes every W-th row of the sampler's order, so steps are consecutive rows of it, with any number of workers.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, consecutive, torch_permutation


def shuffled(reading: Reading) -> Rows:
    """DistributedSampler's order, filled up to a multiple of W with its first rows."""
    order = torch_permutation(reading.length, reading.seed)
    return np.append(order, np.resize(order, -len(order) % reading.world_size))


TRAINER = Trainer(
    name="dataloader",
    title="PyTorch DataLoader or torchdata StatefulDataLoader",
    formats=("parquet",),
    default=lambda reading: consecutive(shuffled(reading), reading.batch),
    shares="rows",
    lines="""\
sampler = DistributedSampler(dataset, num_replicas={world_size}, rank=rank, shuffle=False, drop_last=True)
loader = StatefulDataLoader(dataset, batch_size={micro_batch}, sampler=sampler, drop_last=True)
""",
    resumes="its state counts a rank's own rows, so twice as many ranks resume at twice the position; with "
    "SequenceDataset and GlobalBatchSampler of dagster_divorder.torch it counts the rows of all ranks and resumes "
    "exactly",
)
