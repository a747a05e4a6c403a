"""torchtitan: `HuggingFaceTextDataLoader` over a Parquet export, by a tokenizer that passes ids through."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from datasets import IterableDataset, load_dataset
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import TrainingConfig
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader

from tests.trainers.isolated import replay

NAMES = (DATASETS, DatasetConfig, HuggingFaceTextDataLoader, IterableDataset, TrainingConfig, load_dataset)
"""What lines of a configuration name."""


class Ids(BaseTokenizer):
    """The ids that a sample holds are its tokens."""

    def encode(self, ids: list[int], **_: Any) -> list[int]:
        return ids

    def decode(self, *_: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        raise NotImplementedError


def read(*, lines: str, rank: int, world_size: int, batch: int) -> Iterator[np.ndarray]:
    """lines: of a configuration. At the end of the export the loader begins again, until so many steps are done."""
    given: dict[str, Any] = dict(globals())
    exec(lines, given)
    training = given["training"]
    loader = given["dataloader"].build(
        dp_world_size=world_size,
        dp_rank=rank,
        tokenizer=Ids(),
        seq_len=training.seq_len,
        local_batch_size=training.local_batch_size,
    )
    batches = islice(loader, training.steps * batch // world_size // training.local_batch_size)
    # A sample is shifted by one: of L ids come L - 1 inputs and as many labels.
    yield np.concatenate([np.c_[inputs["input"], labels[:, -1]] for inputs, labels in batches])


if __name__ == "__main__":
    replay(read)
