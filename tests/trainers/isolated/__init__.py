"""What the real packages read of an export, and write. Each module is a script of one trainer, run with the packages
that `make trainers` installs for it:

    PYTHONPATH=.venv/trainers/litdata .venv/bin/python -m tests.trainers.isolated.litdata batches.npz < cases.json

Every rank is replayed in one process, with the package's own dataset, sampler and loader. The cases are a list of
objects with `world_size`, `batch` (rows of a global batch), and what else the module takes, as `lines`, those that
`Trainer.configuration` gives. What is read in them comes out as arrays `arr_0`, `arr_1`, ... of token ids, int64
(steps, batch, length), -1 where an incomplete batch holds nothing; the rows of one rank are side by side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def replay(read: Callable[..., Iterable[Any]]) -> None:
    """Read the cases, and write what `read(rank=..., **case)` gives for each rank: the rows (n, length) of each pass
    over the export, as its loader gives them. What does not fill a global batch at a pass's end is left out."""
    cases = []
    for case in json.load(sys.stdin):
        share = case["batch"] // case["world_size"]
        passes = zip(*(read(rank=rank, **case) for rank in range(case["world_size"])), strict=True)
        batches = []
        for ranks in passes:
            steps = min(map(len, ranks)) // share
            batches.append([rank[: steps * share].reshape(steps, share, -1) for rank in ranks])
        cases.append(np.concatenate([np.concatenate(ranks, axis=1) for ranks in batches]).astype(np.int64))
    np.savez(sys.argv[1], *cases)
