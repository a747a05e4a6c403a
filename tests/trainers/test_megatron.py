"""What Megatron's GPTDataset reads, without cache files and with them, against the models. Its sampler is not in the
megatron-core wheel for Python 3.11: the models state it, consecutive micro-batches of all ranks."""

from __future__ import annotations

import struct
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading

pytestmark = pytest.mark.slow

ROWS, LENGTH = 101, 4


def write_rows(prefix: Path) -> None:
    """Each row one item of LENGTH equal tokens, 1 more than the row."""
    np.repeat(np.arange(1, ROWS + 1, dtype=np.uint16), LENGTH).tofile(prefix.with_suffix(".bin"))
    with prefix.with_suffix(".idx").open("wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, ROWS, ROWS + 1))
        file.write(np.full(ROWS, LENGTH, np.int32).tobytes())
        file.write((np.arange(ROWS, dtype=np.int64) * LENGTH * 2).tobytes())
        file.write(np.arange(ROWS + 1, dtype=np.int64).tobytes())


def dataset(prefix: Path, samples: int, seed: int) -> Any:
    pytest.importorskip("megatron.core")
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    config = GPTDatasetConfig(
        random_seed=seed,
        sequence_length=LENGTH,
        blend_per_split=[([str(prefix)], None), None, None],
        path_to_cache=str(prefix.parent / "cache"),
        tokenizer=SimpleNamespace(vocab_size=500, eod=499, pad=498, unique_identifiers=OrderedDict()),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    low = GPTDataset.build_low_level_dataset(str(prefix), config)
    return GPTDataset(low, str(prefix), np.arange(ROWS, dtype=np.int32), samples, Split.train, config)


def read(data: Any, reading: Reading) -> np.ndarray:
    """Rows of each global batch, under the sampler."""
    tokens = [data[at]["tokens"].unique().tolist() for at in range(reading.steps * reading.batch)]
    return np.array(tokens).reshape(-1, reading.batch) - 1


@pytest.mark.parametrize(("epochs", "batch"), [(1, 16), (2, 16), (1, 101), (3, 50)])
def test_gpt_dataset_shuffles_as_the_model_does(epochs: int, batch: int, tmp_path: Path) -> None:
    """With a last epoch of many samples, and of so few that it is shuffled apart."""
    write_rows(tmp_path / "rows")
    reading = Reading(rows=ROWS, batch=batch, epochs=epochs, seed=7)
    data = dataset(tmp_path / "rows", reading.steps * batch, 7)
    np.testing.assert_array_equal(read(data, reading), TRAINERS["megatron"].default(reading))
