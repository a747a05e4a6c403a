"""grain: by default an IndexSampler with ShardOptions under its DataLoader, whose shards are contiguous slices.

Its workers take every n-th row before batching, so several workers mix even one rank's batches. A MapDataset that takes
every W-th row and batches before workers share it reads the rows in stored order.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, from_ranks, from_workers


def _default(reading: Reading) -> Rows:
    """All ranks read the same number of rows: a shorter shard begins again."""
    ranks, workers = [], max(reading.workers, 1)
    for shard in np.array_split(np.arange(reading.length), reading.world_size):
        stream = np.resize(shard, reading.length // reading.world_size)
        ranks.append(from_workers([stream[w::workers] for w in range(workers)], reading.micro_batch))
    return from_ranks(ranks, reading)


TRAINER = Trainer(
    name="grain",
    title="grain",
    formats=("parquet",),
    default=_default,
    shares="rows",
    lines="""\
rows = grain.MapDataset.source(source)
loader = rows[rank::{world_size}].batch({micro_batch}, drop_remainder=True).to_iter_dataset()
loader = loader.mp_prefetch(grain.MultiprocessingOptions(num_workers={workers}))
""",
    resumes="its state is a rank's own position, so another world size reads some rows twice and skips others",
)
