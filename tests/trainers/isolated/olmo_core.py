"""OLMo-core: `NumpyFSLDataLoader` over a `NumpyFSLDataset`, a new loader each epoch as after a restart."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from olmo_core.data import NumpyFSLDataLoader, NumpyFSLDataset
from olmo_core.data.collator import DataCollator

from tests.trainers.isolated import replay


def read(
    *,
    folder: str,
    length: int,
    dtype: str,
    rank: int,
    world_size: int,
    batch: int,
    epochs: int,
    shuffle: bool,
    work: str = "",
    workers: int = 0,
) -> Iterator[np.ndarray]:
    """work: a folder with files of global indices, which are used where they are there."""
    paths = sorted(Path(folder).glob("train-*.npy"))
    dataset = NumpyFSLDataset(
        *paths,
        sequence_length=length,
        pad_token_id=0,
        eos_token_id=0,
        vocab_size=1 << 16,
        dtype=np.dtype(dtype).type,
    )
    with tempfile.TemporaryDirectory() as scratch:
        dataset.work_dir = Path(scratch)
        dataset.prepare()
        loader = NumpyFSLDataLoader(
            dataset,
            collator=DataCollator(pad_token_id=0),
            global_batch_size=batch * length,
            work_dir=work or scratch,
            shuffle=shuffle,
            num_workers=workers,
            dp_world_size=world_size,
            dp_rank=rank,
            fs_local_rank=0,
        )
        for epoch in range(1, epochs + 1):
            loader.reshuffle(epoch=epoch)
            yield np.concatenate([batch["input_ids"] for batch in loader])
            loader.reset()


if __name__ == "__main__":
    replay(read)
