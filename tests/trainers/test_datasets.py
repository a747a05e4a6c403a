"""What streaming `datasets` hand to ranks with their lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading, Trainer
from tests.trainers.replay import ascending, global_batches

pytestmark = pytest.mark.slow


def packages() -> tuple[Any, Any]:
    """`datasets` and torchdata's loader, imported where a test runs."""
    pytest.importorskip("datasets.distributed")
    return pytest.importorskip("datasets"), pytest.importorskip("torchdata.stateful_dataloader")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of Parquet with 96 rows, a number that four divides, in a folder whose name `datasets` takes for a
    pattern."""
    datasets, _ = packages()
    path = tmp_path_factory.mktemp("parquet") / "run [12]"
    path.mkdir()
    for file in range(4):
        data = datasets.Dataset.from_dict({"row": range(24 * file, 24 * file + 24)})
        data.to_parquet(path / f"{file}.parquet")
    return path


def named(trainer: Trainer, reading: Reading, path: Path, **names: Any) -> dict[str, Any]:
    """The names that a trainer's lines define."""
    datasets, _ = packages()
    names |= {"load_dataset": datasets.load_dataset, "IterableDataset": datasets.IterableDataset}
    exec(trainer.configuration(reading, path=str(path), prefix="train", sequence_length=8), names)
    return names


def test_the_lines_for_streaming_keep_the_order(folder: Path) -> None:
    datasets, loaders = packages()
    reading = Reading(rows=96, batch=16, world_size=2, micro_batch=2)
    given = {
        "split_dataset_by_node": datasets.distributed.split_dataset_by_node,
        "DataLoader": loaders.StatefulDataLoader,
    }
    trainer = TRAINERS["hf-streaming"]
    ranks = [named(trainer, reading, folder, rank=rank, **given)["loader"] for rank in range(2)]
    read = global_batches([[step["row"] for step in loader] for loader in ranks], reading)
    np.testing.assert_array_equal(read, np.arange(96).reshape(-1, 16))
    np.testing.assert_array_equal(read, ascending(trainer.best(reading)))
