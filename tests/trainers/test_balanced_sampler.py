"""Trainers read what BalancedSampler says, epoch after epoch: the real ones, on one process or dealt to ranks."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.utils.data import DataLoader

from dagster_divorder.torch import BalancedSampler
from tests.trainers.test_lightning import QUIET, recorder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:tokens is not given"),
]

ROWS = 21
TABLE = {"topic": [["sea", "rail", "air"][row % 3] for row in range(ROWS)]}


def sampler(**arguments: Any) -> BalancedSampler:
    return BalancedSampler(TABLE, "topic", **{"batch_size": 4, **arguments})


def orders(epochs: int) -> list[list[int]]:
    one = sampler()
    return [list(one) for _ in range(epochs)]


class Rows(nn.Module):
    """Takes row numbers, and says which."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.ones_(nn.Linear(1, 1).weight))
        self.read: list[int] = []

    def forward(self, row: Any) -> dict[str, Any]:
        self.read += row.tolist()
        return {"loss": (self.weight * row).mean()}


def test_the_hugging_face_trainer_reads_epochs_and_resumes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"row": range(ROWS), **TABLE})

    class Balanced(transformers.Trainer):  # type: ignore[name-defined,misc]
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return sampler()

    def train(**resume: Any) -> list[int]:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            train_sampling_strategy="sequential",
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            num_train_epochs=3,
            save_steps=8,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        model = Rows()
        trainer = Balanced(model, arguments, train_dataset=data)
        trainer.train(**resume)
        return model.read

    whole = [*chain(*orders(3))]
    assert train() == whole
    # Of the second epoch, 21 + 2 x 4 rows are behind it.
    assert train(resume_from_checkpoint=str(tmp_path / "checkpoint-8")) == whole[29:]


def test_lightning_reads_epochs(tmp_path: Path) -> None:
    lightning, module = pytest.importorskip("lightning.pytorch"), recorder()
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=3, default_root_dir=tmp_path, **QUIET)
    trainer.fit(module, DataLoader(range(ROWS), 4, sampler=sampler()))  # type: ignore[arg-type]
    assert [row for batch in module.seen for row in batch.tolist()] == [*chain(*orders(3))]
