"""litdata: `StreamingDataLoader` over a `StreamingDataset`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from litdata import StreamingDataLoader, StreamingDataset
from litdata.utilities.env import _DistributedEnv

from tests.trainers.isolated import replay


def read(
    *,
    folder: str,
    rank: int,
    world_size: int,
    batch: int,
    micro_batch: int,
    epochs: int,
    workers: int = 0,
    shuffle: bool = False,
) -> Iterator[np.ndarray]:
    dataset = StreamingDataset(folder, shuffle=shuffle, drop_last=True)
    dataset.distributed_env = _DistributedEnv(world_size=world_size, global_rank=rank, num_nodes=1)
    loader = StreamingDataLoader(dataset, batch_size=micro_batch, num_workers=workers)
    for _ in range(epochs):
        yield np.concatenate([found["input_ids"] for found in loader])


if __name__ == "__main__":
    replay(read)
