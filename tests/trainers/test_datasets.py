"""What `datasets` hands to ranks and workers, map-style and streaming, and torchtitan on top, against their models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading, Trainer
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES, ascending, global_batches

pytestmark = pytest.mark.slow


def packages() -> tuple[Any, Any]:
    """`datasets` and torchdata's loader, imported where a test runs."""
    pytest.importorskip("datasets.distributed")
    return pytest.importorskip("datasets"), pytest.importorskip("torchdata.stateful_dataloader")


def read_by_torchtitan(data: Any, reading: Reading) -> np.ndarray:
    """torchtitan's loop over a dataset of `datasets`: one pass."""
    from torch.utils.data import IterableDataset

    datasets, loaders = packages()

    class Looped(IterableDataset[int]):
        def __init__(self, data: Any) -> None:
            self.data = data

        def __iter__(self) -> Iterator[int]:
            yield from (row["row"] for row in self.data)

    ranks = [
        loaders.StatefulDataLoader(
            Looped(datasets.distributed.split_dataset_by_node(data, rank, reading.world_size)),
            reading.micro_batch,
            num_workers=reading.workers,
            drop_last=True,  # its loop has no end, where a micro-batch could be incomplete
        )
        for rank in range(reading.world_size)
    ]
    return global_batches([list(loader) for loader in ranks], reading)[: reading.steps]


WORKERS = [(world_size, micro_batch, 0) for world_size, micro_batch in RANKS_AND_MICRO_BATCHES]
WORKERS += [(2, 2, 2), (1, 4, 2)]


@pytest.mark.parametrize("rows", [96, 101])
@pytest.mark.parametrize(("world_size", "micro_batch", "workers"), WORKERS)
def test_torchtitan_slices_what_the_model_says(
    world_size: int, micro_batch: int, workers: int, rows: int
) -> None:
    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch, workers=workers)
    datasets, _ = packages()
    data = datasets.Dataset.from_dict({"row": range(rows)})
    expected = ascending(TRAINERS["torchtitan"].default(reading))
    np.testing.assert_array_equal(expected, read_by_torchtitan(data, reading))


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


def test_the_lines_for_torchtitan_read_what_the_model_says(folder: Path) -> None:
    reading = Reading(rows=48, batch=16, epochs=2, world_size=2, micro_batch=2)
    table: dict[str, Any] = {}
    given = {
        "DATASETS": table,
        "DatasetConfig": SimpleNamespace,
        "HuggingFaceTextDataLoader": SimpleNamespace(Config=SimpleNamespace),
        "TrainingConfig": SimpleNamespace,
    }
    names = named(TRAINERS["torchtitan"], reading, folder, **given)
    assert vars(names["training"]) == {
        "seq_len": 7,
        "local_batch_size": 2,
        "global_batch_size": 16,
        "steps": 6,
    }
    data = table["plan"].loader(table["plan"].path)
    read = read_by_torchtitan(data, reading)
    np.testing.assert_array_equal(read, ascending(TRAINERS["torchtitan"].best(reading)))
