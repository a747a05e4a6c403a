"""The folders that litdata's `BinaryWriter` writes of rows."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from litdata.streaming.writer import BinaryWriter

if __name__ == "__main__":
    for case in json.load(sys.stdin):
        samples = {name: torch.from_numpy(rows) for name, rows in np.load(case["samples"]).items()}
        writer = BinaryWriter(case["folder"], chunk_size=case["rows_of_files"][0])
        for number, row in enumerate(zip(*samples.values(), strict=True)):
            writer[number] = dict(zip(samples, row, strict=True))
        writer.done()
        writer.merge()
