"""torchtitan's HuggingFaceTextDataLoader over a streaming dataset.

The dataset is split as in `datasets` (hf_streaming), and its second pass calls set_epoch, which reorders the files. A
dataset of one source has no files to share or reorder: each rank reads every W-th row, and a batch is consecutive.
Known weakness: a loader's workers share the epoch's number, and a fast worker may set it before another has read it.
From the second pass on, several workers may then read the files in an unpredictable order.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.hf_streaming import file_rows, worker_streams
from dagster_divorder.trainers.trainer import (
    Reading,
    Rows,
    Trainer,
    from_ranks,
    from_workers,
    one_after_another,
)


def _default(reading: Reading) -> Rows:
    """The loader is infinite, so its passes follow one another within a batch."""
    files, passes = file_rows(reading), []
    for epoch in range(reading.passes):
        places = list(range(len(files)))
        if epoch:
            np.random.default_rng(epoch).shuffle(places)
        passes.append(worker_streams([files[place] for place in places], reading))
    ranks = [
        from_workers([np.concatenate(worker) for worker in zip(*rank, strict=True)], reading.micro_batch)
        for rank in zip(*passes, strict=True)
    ]
    return from_ranks(ranks, reading)


TRAINER = Trainer(
    name="torchtitan-streaming",
    title="torchtitan (streaming dataset)",
    formats=("parquet",),
    default=_default,
    best=one_after_another,
    lines="""\
DATASETS["plan"] = DatasetConfig(
    path="{pattern}",
    # One source whatever the number of files, so that ranks share all files.
    loader=lambda path: IterableDataset.from_generator(
        load_dataset, gen_kwargs=dict(path="parquet", data_dir=path, split="train", streaming=True)
    ),
    sample_processor=lambda row: row["input_ids"],  # with a tokenizer whose encode returns what it is given
)
dataloader = HuggingFaceTextDataLoader.Config(dataset="plan", num_workers=0)
training = TrainingConfig(seq_len={window}, local_batch_size={micro_batch}, global_batch_size={batch}, steps={steps})
""",
    reads_labels=False,
    joins_rows=True,
    resumes="refuses: it asserts the same data-parallel degree",
)
