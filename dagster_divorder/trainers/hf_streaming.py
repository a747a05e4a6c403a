"""A streaming `datasets` dataset under split_dataset_by_node and a PyTorch DataLoader that drops incomplete batches.

By default, if W divides the number of files, ranks take whole files in turn, so the rows of a batch lie far apart;
otherwise each takes every W-th row. The workers of a rank share its files. The loop does not call set_epoch, which
would reorder the files from the second epoch on, even without shuffling.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, from_ranks, from_workers, pass_by_pass


def file_rows(reading: Reading) -> list[Rows]:
    """The rows of each file."""
    return (
        np.split(np.arange(reading.length), np.cumsum(reading.files)[:-1])
        if reading.files
        else [np.arange(reading.length)]
    )


def worker_streams(files: list[Rows], reading: Reading) -> list[list[Rows]]:
    """The rows that each worker of each rank reads in one pass: [rank][worker] (n,)."""
    ranks, workers = reading.world_size, max(reading.workers, 1)
    nothing = np.empty(0, np.int64)
    if len(files) % ranks == 0:
        shares = [(files[rank::ranks], slice(None)) for rank in range(ranks)]
    else:
        shares = [(files, slice(rank, None, ranks)) for rank in range(ranks)]
    return [
        [np.concatenate([nothing, *share[worker::workers]])[rows] for worker in range(workers)]
        for share, rows in shares
    ]


def _default(reading: Reading) -> Rows:
    streams = worker_streams(file_rows(reading), reading)
    ranks = [from_workers(workers, reading.micro_batch) for workers in streams]
    return np.tile(from_ranks(ranks, reading), (reading.passes, 1))


TRAINER = Trainer(
    name="hf-streaming",
    title="datasets, streaming",
    formats=("parquet",),
    default=_default,
    best=pass_by_pass,
    lines="""\
dataset = load_dataset("parquet", data_dir="{pattern}", split="train", streaming=True)
dataset = split_dataset_by_node(dataset, rank, {world_size}, strategy="examples")
loader = DataLoader(dataset, batch_size={micro_batch}, num_workers=1, drop_last=True)
""",
    resumes="its state is a rank's own position, so another world size reads some rows twice and skips others",
)
