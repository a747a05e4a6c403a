"""Megatron-LM: GPTDataset over one `.bin`/`.idx`, MegatronPretrainingSampler.

GPTDataset shuffles the items of the `.idx`, cuts their stream into samples, and shuffles the samples; if its cache
already holds the three index files, it uses these files. The sampler gives each rank the next micro-batch, so every
global batch is consecutive. `consumed_samples` is its whole state.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, consecutive


def _default(reading: Reading) -> Rows:
    """Without cache files: the rows of one epoch, each a single item. (Rows of several items are also cut elsewhere.)

    A sample reads one token beyond its row, so the last row of all epochs makes no sample, and another epoch begins.
    """
    rows, samples = reading.rows, reading.steps * reading.batch
    epochs = samples // rows + 1
    random = np.random.RandomState(reading.seed)
    before = (epochs - 1) * rows - 1  # samples of all epochs except the last
    # GPTDataset shuffles the last epoch separately if it needs less than this share of it.
    apart = epochs > 1 and samples - before < int(0.8 * (rows - 1))
    items = [np.tile(np.arange(rows), count) for count in ((epochs - 1, 1) if apart else (epochs,))]
    for part in items:
        random.shuffle(part)
    total = epochs * rows - 1
    shuffled = np.split(np.arange(total), [before] if apart else [])
    for part in shuffled:
        random.shuffle(part)
    return consecutive(np.concatenate(items)[np.concatenate(shuffled)[:samples]], reading.batch)


TRAINER = Trainer(
    name="megatron",
    title="Megatron-LM (GPTDataset)",
    formats=("megatron",),
    default=_default,
    shares="micro-batches",
    lines="""\
# pretrain_gpt.py, before the datasets are built: write_cache of {path}/megatron_cache.py
--train-data-path {path}/{prefix}
--data-cache-path {path}.cache
--train-samples {samples}
--seq-length {sequence_length}
--global-batch-size {batch}
--micro-batch-size {micro_batch}
--dataloader-type single
--seed {seed}
""",
    resumes="resumes exactly: consumed_samples counts sequences of all ranks",
)
