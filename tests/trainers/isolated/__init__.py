"""What the real packages read of an export. Each module replays one trainer in the environment that `make trainers`
makes for it, every rank in one process, with the package's own dataset, sampler and loader:

    PYTHONPATH=.venv/trainers/litdata .venv/bin/python -m tests.trainers.replay.litdata found.npz < cases.json

The cases are a list of objects with `folder`, `world_size`, `batch` (rows of a global batch), and what else the module
takes; `length` is in tokens a row. What is read in them comes out as arrays `arr_0`, `arr_1`, ... of token ids, int64
(steps, batch, length); the rows of one rank are side by side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def replay(read: Callable[..., Iterable[Any]]) -> None:
    """Read the cases, and write what `read(rank=..., **case)` gives for each rank: rows (n, length), as its loader gives
    them, over all epochs."""
    found = []
    for case in json.load(sys.stdin):
        rows = case["batch"] // case["world_size"]
        ranks = [np.concatenate(list(read(rank=rank, **case))) for rank in range(case["world_size"])]
        steps = min(map(len, ranks)) // rows
        batches = [rank[: steps * rows].reshape(steps, rows, -1) for rank in ranks]
        found.append(np.concatenate(batches, axis=1).astype(np.int64))
    np.savez(sys.argv[1], *found)
