"""litdata: `StreamingDataLoader` over a `StreamingDataset`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from litdata import StreamingDataLoader, StreamingDataset
from litdata.utilities.env import _DistributedEnv

from tests.trainers.isolated import replay


def read(*, lines: str, rank: int, world_size: int, batch: int) -> Iterator[np.ndarray]:
    """lines: the data set and its loader."""
    given: dict[str, Any] = {"StreamingDataset": StreamingDataset, "StreamingDataLoader": StreamingDataLoader}
    exec(lines, given)
    # The data set takes its rank from the process that makes it; here one process stands for all ranks.
    given["dataset"].distributed_env = _DistributedEnv(world_size=world_size, global_rank=rank, num_nodes=1)
    yield np.concatenate([batch["input_ids"] for batch in given["loader"]])


if __name__ == "__main__":
    replay(read)
