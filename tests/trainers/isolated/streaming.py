"""MosaicML streaming: `generate_work` over a `StreamingDataset` of an MDS export, for every worker of every rank."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

from tests.trainers.isolated import replay


def leave_out_torchvision() -> None:
    """Let `import streaming` find the two names that its data sets of images want. The real torchvision has to be of
    just the build that torch is."""
    for name, values in {
        "torchvision": {},
        "torchvision.datasets": {"VisionDataset": object},
        "torchvision.transforms": {},
        "torchvision.transforms.functional": {"to_tensor": None},
    }.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(values)
        sys.modules[name] = module


@cache
def opened(lines: str, nodes: int) -> tuple[Any, np.ndarray]:
    """A data set, and its tokens, int64 (rows, length). It holds files and shared memory while the process lives."""
    import streaming

    dataset = eval(lines, vars(streaming))
    rows = [dataset[row]["tokens"] for row in range(dataset.num_samples)]
    return dataset, np.stack(rows).astype(np.int64)


def read(
    *, lines: str, rank: int, world_size: int, batch: int, workers: int, nodes: int
) -> Iterator[np.ndarray]:
    """lines: the data set."""
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    dataset, tokens = opened(lines, nodes)
    world = World(nodes, world_size // nodes, workers, 0)
    _, sample = dataset._resume(world, 0)
    # (nodes, ranks of a node, workers of a rank, batches, rows), -1 for nothing; a rank's workers take turns.
    work = generate_work(dataset.batching_method, dataset, world, 0, sample)
    mine = work.reshape(world_size, workers, -1, work.shape[-1])[rank].swapaxes(0, 1)
    mine = mine.reshape(-1, work.shape[-1])
    rows = mine[(mine >= 0).any(axis=1)].ravel()
    yield np.where(rows[:, None] >= 0, tokens[rows], -1)


if __name__ == "__main__":
    leave_out_torchvision()
    replay(read)
