"""Global batches out of what each rank of a trainer was handed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.trainers import Reading

RANKS_AND_MICRO_BATCHES = [(1, 1), (1, 4), (2, 2), (4, 1), (4, 4)]


def global_batches(
    ranks: Sequence[Iterable[Iterable[int]]], reading: Reading, *, step_on_rest: bool = False
) -> NDArray[np.int64]:
    """ranks: the micro-batches of rows that each rank read. step_on_rest: an incomplete last batch is a step, too.

    The rows of a batch are ascending, since their order has no meaning; -1 stands for nothing.
    """
    steps = [[int(row) for part in step for row in part] for step in zip(*ranks, strict=False)]
    many = reading.batch // (reading.world_size * reading.micro_batch)
    batches = [[*chain(*steps[at : at + many])] for at in range(0, len(steps), many)]
    full = [b + [-1] * (reading.batch - len(b)) for b in batches if step_on_rest or len(b) == reading.batch]
    return np.sort(np.array(full, dtype=np.int64).reshape(-1, reading.batch), axis=1)


def ascending(batches: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.sort(batches, axis=1)


def dealt_by_accelerate(rows: Any, size: int, sampler: Any, reading: Reading) -> list[list[Any]]:
    """The micro-batches that each rank reads under torchrun of a loader of batches of so many rows."""
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader

    options = {"put_on_device": False, "use_seedable_sampler": True, "data_seed": 42}
    loader, ranks = DataLoader(rows, size, sampler=sampler), range(reading.world_size)
    return [
        list(prepare_data_loader(loader, num_processes=len(ranks), process_index=rank, **options))
        for rank in ranks
    ]
