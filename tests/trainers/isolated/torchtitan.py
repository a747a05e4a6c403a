"""torchtitan: `HuggingFaceTextDataLoader` over a Parquet export, by a tokenizer that passes ids through."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from datasets import load_dataset
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader

from tests.trainers.isolated import replay


class Ids(BaseTokenizer):
    """The ids that a sample holds are its tokens."""

    def encode(self, ids: list[int], **_: Any) -> list[int]:
        return ids

    def decode(self, *_: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        raise NotImplementedError


def read(
    *,
    folder: str,
    length: int,
    rank: int,
    world_size: int,
    batch: int,
    micro_batch: int,
    steps: int,
    streaming: bool,
) -> Iterator[np.ndarray]:
    """The rows of so many steps: at the end of the export it begins again."""
    files = sorted(map(str, Path(folder).glob("*.parquet")))
    DATASETS["plan"] = DatasetConfig(
        path=folder,
        loader=lambda _: load_dataset("parquet", data_files=files, split="train", streaming=streaming),
        sample_processor=lambda sample: sample["input_ids"],
    )
    loader = HuggingFaceTextDataLoader(
        HuggingFaceTextDataLoader.Config(dataset="plan"),
        dp_world_size=world_size,
        dp_rank=rank,
        tokenizer=Ids(),
        # It shifts a sample by one: of L ids come L - 1 inputs and as many labels.
        seq_len=length - 1,
        local_batch_size=micro_batch,
    )
    found = islice(loader, steps * batch // world_size // micro_batch)
    yield np.concatenate([np.c_[inputs["input"], labels[:, -1]] for inputs, labels in found])


if __name__ == "__main__":
    replay(read)
