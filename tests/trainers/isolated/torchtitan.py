"""torchtitan: `HuggingFaceTextDataLoader` over a Parquet export, by the guide's tokenizer, which passes ids through."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import IterableDataset, load_dataset
from torchtitan.config import TrainingConfig
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader

from tests.trainers.isolated import replay

NAMES = (DATASETS, DatasetConfig, HuggingFaceTextDataLoader, IterableDataset, TrainingConfig, load_dataset)
"""What lines of a configuration name."""


PAGE = Path(__file__).parents[3] / "docs/trainers/torchtitan.md"
(TOKENIZER,) = re.findall(r"```python\n(from torchtitan.*?)```", PAGE.read_text(), re.S)
"""Of the guide: the ids that a sample holds are its tokens."""


def read(*, lines: str, rank: int, world_size: int, batch: int) -> Iterator[np.ndarray]:
    """lines: of a configuration. At the end of the export the loader begins again, until so many steps are done."""
    given: dict[str, Any] = dict(globals())
    exec(TOKENIZER, given)
    exec(lines, given)
    training = given["training"]
    loader = given["dataloader"].build(
        dp_world_size=world_size,
        dp_rank=rank,
        tokenizer=given["Ids"](),
        seq_len=training.seq_len,
        local_batch_size=training.local_batch_size,
    )
    batches = islice(loader, training.steps * batch // world_size // training.local_batch_size)
    # A sample is shifted by one: of L ids come L - 1 inputs and as many labels.
    yield np.concatenate([np.c_[inputs["input"], labels[:, -1]] for inputs, labels in batches])


if __name__ == "__main__":
    replay(read)
