"""OLMo-core: NumpyFSLDataLoader over fixed-length rows.

An epoch, from 1, is a permutation of the rows by PCG64(seed + epoch), or an index file in work_dir. Each epoch's
incomplete last batch is dropped; the export's index files put it at the start of the next epoch. Ranks share finished
batches, and workers take whole batches in turn, so neither changes a batch's content.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, consecutive, in_order


def _default(reading: Reading) -> Rows:
    """Without index files: every epoch has the rows of one epoch."""
    epochs = []
    for epoch in range(1, reading.epochs + 1):
        rows = np.arange(reading.rows)
        np.random.Generator(np.random.PCG64(reading.seed + epoch)).shuffle(rows)
        epochs.append(consecutive(rows, reading.batch))
    return np.concatenate(epochs)


def _best(reading: Reading) -> Rows:
    """The index files list the plan's batches one after another. An epoch without a whole batch is empty."""
    return in_order(reading) if reading.rows >= reading.batch else np.empty((0, reading.batch), np.int64)


TRAINER = Trainer(
    name="olmo-core",
    title="OLMo-core (NumpyFSLDataLoader)",
    formats=("olmo",),
    default=_default,
    best=_best,
    shares="rows",
    lines="""\
dataset = NumpyFSLDatasetConfig(
    paths=["{pattern}/{prefix}-*.npy"],
    # label_mask_paths=["{pattern}/{prefix}-*.mask"],  # where the export has them: padding, and what is not trained on
    expand_glob=True,
    sequence_length={sequence_length},
    dtype=NumpyDatasetDType.uint16,  # as in the export's manifest.json
    work_dir="{path}",
)
data_loader = NumpyDataLoaderConfig(
    global_batch_size={tokens},
    seed=0,  # of the index files
    work_dir="{path}",  # where they are
)
""",
    resumes="resumes exactly: tokens_processed counts tokens of all ranks",
)
