"""Lightning's Trainer over a PyTorch DataLoader.

With several ranks it replaces the sampler with a shuffling DistributedSampler, even for a DataLoader with
shuffle=False. It does not change a single rank's loader. An incomplete last batch is an optimizer step too.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.dataloader import shuffled
from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, consecutive


def _default(reading: Reading) -> Rows:
    """A DataLoader with its defaults: without shuffling, and without drop_last."""
    order = shuffled(reading) if reading.world_size > 1 else np.arange(reading.length)
    return consecutive(order, reading.batch, drop_last=False)


def _best(reading: Reading) -> Rows:
    """Rows that do not fill a step of all ranks are dropped."""
    step = reading.world_size * reading.micro_batch
    return consecutive(np.arange(reading.length // step * step), reading.batch, drop_last=False)


TRAINER = Trainer(
    name="lightning",
    title="Lightning Trainer",
    formats=("parquet",),
    default=_default,
    best=_best,
    shares="rows",
    lines="""\
sampler = DistributedSampler(dataset, num_replicas={world_size}, rank=rank, shuffle=False, drop_last=True)
loader = StatefulDataLoader(dataset, batch_size={micro_batch}, sampler=sampler, drop_last=True)
trainer = Trainer(use_distributed_sampler=False, accumulate_grad_batches={accumulation}, max_steps={steps})
""",
    resumes="a DataLoader restarts its epoch; a StatefulDataLoader's state counts a rank's own rows",
)
