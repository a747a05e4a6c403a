"""The folders that `streaming.MDSWriter` writes of rows."""

from __future__ import annotations

import json
import sys

import numpy as np

from tests.trainers.isolated.streaming import leave_out_torchvision

if __name__ == "__main__":
    leave_out_torchvision()
    from streaming import MDSWriter

    for case in json.load(sys.stdin):
        samples = dict(np.load(case["samples"]))
        columns = {name: f"ndarray:{rows.dtype}:{rows.shape[1]}" for name, rows in samples.items()}
        with MDSWriter(out=case["folder"], columns=columns, size_limit=case["shard_bytes"]) as writer:
            for row in zip(*samples.values(), strict=True):
                writer.write(dict(zip(samples, row, strict=True)))
