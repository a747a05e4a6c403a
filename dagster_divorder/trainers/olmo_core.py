"""OLMo-core: NumpyFSLDataLoader over fixed-length rows.

An epoch is a permutation of the rows, by PCG64(seed + epoch) and epochs from 1, or a file of that name in work_dir
where there is one. Each epoch's incomplete last batch is dropped. Ranks share out a finished batch and workers take
whole batches in turn, so neither changes what a batch holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, consecutive


def _default(reading: Reading) -> Rows:
    """Without index files: the rows of one epoch in each."""

    def order(epoch: int) -> Rows:
        rows = np.arange(reading.rows)
        np.random.Generator(np.random.PCG64(reading.seed + epoch + 1)).shuffle(rows)
        return rows

    return _epochs(reading.epochs, order, reading.batch)


def _best(reading: Reading) -> Rows:
    """Stored epochs are index files, one an epoch: row e * rows + i is entry i of epoch e's file."""
    apart = reading.rows if reading.stored_epochs else 0
    return _epochs(reading.epochs, lambda epoch: epoch * apart + np.arange(reading.rows), reading.batch)


def _epochs(count: int, order: Callable[[int], Rows], batch: int) -> Rows:
    return np.concatenate([consecutive(order(epoch), batch) for epoch in range(count)])


TRAINER = Trainer(
    name="olmo-core",
    title="OLMo-core (NumpyFSLDataLoader)",
    formats=("olmo",),
    default=_default,
    best=_best,
    lines="""\
dataset = NumpyFSLDatasetConfig(
    paths=["{path}/*.npy"], expand_glob=True, sequence_length={sequence_length}, work_dir="{path}"
)
data_loader = NumpyDataLoaderConfig(
    global_batch_size={tokens},
    seed={seed},
    shuffle={stored_epochs},  # True reads the export's index files, one an epoch; False the rows as they lie
)
""",
    resumes="goes on exactly: tokens_processed counts tokens of all ranks",
)
