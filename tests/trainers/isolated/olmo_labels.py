"""The labels that OLMo-core makes of the rows of each case, int64 (rows, length), -100 where a token has no loss."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from olmo_core.data import NumpyFSLDataset
from olmo_core.data.collator import DataCollator
from olmo_core.data.utils import get_labels

if __name__ == "__main__":
    labels = []
    for case in json.load(sys.stdin):
        folder = Path(case["folder"])
        dataset = NumpyFSLDataset(
            *sorted(folder.glob("train-*.npy")),
            sequence_length=case["length"],
            pad_token_id=0,
            eos_token_id=0,
            vocab_size=1 << 16,
            dtype=np.dtype(case["dtype"]).type,
            label_mask_paths=sorted(folder.glob("train-*.mask")),
        )
        dataset.prepare()
        batch = DataCollator(pad_token_id=0)([dataset[row] for row in range(len(dataset))])
        labels.append(get_labels(batch).numpy())
    np.savez(sys.argv[1], *labels)
