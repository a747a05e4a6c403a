"""litdata's StreamingDataset and StreamingDataLoader, shuffle=False.

Every worker of every rank reads a contiguous slice of whole micro-batches, rank by rank and within it worker by worker;
rows that do not fill all ranks are dropped. A single rank keeps them by default, in the slice of one worker.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, from_ranks, from_workers


def _batches(reading: Reading, *, drop_last: bool) -> Rows:
    """If micro-batches cannot be shared equally, the first workers of a rank read one more."""
    share, workers = reading.length // reading.micro_batch // reading.world_size, max(reading.workers, 1)
    counts = reading.micro_batch * (share // workers + (np.arange(workers) < share % workers))
    if not drop_last:
        counts[share % workers] += reading.length % reading.micro_batch
    slices = np.split(np.arange(counts.sum()), counts.cumsum()[:-1])
    rows = from_workers(slices, reading.micro_batch)
    return from_ranks([rows + rank * counts.sum() for rank in range(reading.world_size)], reading)


TRAINER = Trainer(
    name="litdata",
    title="litdata",
    formats=("litdata",),
    default=lambda reading: _batches(reading, drop_last=reading.world_size > 1),
    best=lambda reading: _batches(reading, drop_last=True),
    shares="micro-batches",
    lines="""\
dataset = StreamingDataset("{path}", shuffle=False, drop_last=True)
loader = StreamingDataLoader(dataset, batch_size={micro_batch}, num_workers={workers})
""",
    resumes="redistributes the remaining rows, not in the order of the plan",
    parts="workers",
)
