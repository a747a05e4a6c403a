"""The log of the mix: its numbers, and the trainers that log them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder.readers import mix_log
from dagster_divorder.torch import MixLog, SequenceDataset, open_export
from dagster_divorder.write.exports import FORMATS
from tests.readers.made import write_export
from tests.write.exports.made import rows_of, runs_of

BATCH, LENGTH, EPOCHS = 4, 16, 2
LENGTHS = np.random.default_rng(1).integers(1, 40, 60).tolist()
NAMES_OF = ("web", "books", "code")


@pytest.mark.parametrize("name", FORMATS)
def test_a_step_is_logged_as_its_batch_holds_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, corpus = (
        tmp_path / name,
        {"lengths": LENGTHS, "length": LENGTH, "epochs": EPOCHS, "end_of_text": False},
    )
    write_export(path, name, corpus, batch=BATCH)
    written = rows_of(**corpus, index=FORMATS[name].epochs == "index")
    tokens_of = [Counter[str]() for _ in range(len(written))]
    for counts, runs in zip(tokens_of, runs_of(written), strict=True):
        for record, _, ids in runs:
            counts[NAMES_OF[record % 3]] += len(ids)
    rows = [tokens_of[row] for row in written.epochs.reshape(-1).tolist()]
    mix = MixLog(path)
    whole = sum(rows, Counter[str]())
    read = Counter[str]()
    assert len(mix) == -(-len(rows) // BATCH)
    for step in range(len(mix)):
        held = sum(rows[step * BATCH : (step + 1) * BATCH], Counter[str]())
        read += held
        logged, tokens = mix(step), held.total()
        distance = sum(abs(held[name] / tokens - whole[name] / whole.total()) for name in NAMES_OF) / 2
        assert logged == pytest.approx(
            {
                "read/tokens": read.total(),
                "distance/source": distance,
                **{f"mix/source/{name}": held[name] / tokens for name in NAMES_OF},
                **{f"read/source/{name}": EPOCHS * read[name] / whole[name] for name in NAMES_OF},
            }
        )
    monkeypatch.setattr(mix_log, "MOST_VALUES", 1)
    few = MixLog(path)(0)
    assert few["mix/source/(others)"] == pytest.approx(
        1 - max(few[f"mix/source/{n}"] for n in NAMES_OF if f"mix/source/{n}" in few)
    )
    assert few["distance/source"] == pytest.approx(mix(0)["distance/source"])
    with pytest.raises(IndexError, match=f"has steps 0 to {len(mix) - 1}, not {len(mix)}"):
        mix(len(mix))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An export that real trainers read."""
    corpus = {"lengths": [16] * 48, "length": 16, "vocabulary": 50, "end_of_text": False}
    write_export(tmp_path / "parquet", "parquet", corpus, batch=4)
    return tmp_path / "parquet"


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    ids = torch.tensor([row["input_ids"] for row in rows])
    return {"input_ids": ids, "labels": ids}


@pytest.mark.slow
def test_the_callback_logs_beside_the_loss(path: Path, tmp_path: Path) -> None:
    """TRL's trainers log as this one, which is their base."""
    from datasets import load_dataset
    from transformers import Trainer, TrainingArguments

    from tests.trainers.test_trl import QUIET, tokens_and_model

    dataset = load_dataset("parquet", data_dir=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        train_sampling_strategy="sequential",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=6,
        logging_steps=2,
        **QUIET,
    )
    _, model = tokens_and_model(50)
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=collate)
    mix = MixLog(path)
    trainer.add_callback(mix.callback(trainer))
    trainer.train()
    history = trainer.state.log_history
    assert [row["step"] for row in history if "loss" in row] == [2, 4, 6]
    logged = {row["step"]: row for row in history if "mix/source/web" in row}
    assert list(logged) == [2, 4, 6]
    for step, row in logged.items():
        assert {name: row[name] for name in mix(step - 1)} == mix(step - 1)


@pytest.mark.slow
def test_lightning_logs_each_optimizer_step(path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    import torch

    from tests.trainers.test_loaders import QUIET, recorder

    dataset, mix, logged = SequenceDataset(path), MixLog(path), dict[int, dict[str, float]]()

    class Kept(lightning.loggers.logger.DummyLogger):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            logged[int(step or 0)] = metrics

    loader = torch.utils.data.DataLoader(dataset, 2, collate_fn=dataset.collate)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=6,
        accumulate_grad_batches=2,
        log_every_n_steps=1,
        callbacks=[mix.lightning_callback()],
        **QUIET | {"logger": Kept()},
    )
    trainer.fit(recorder(), loader)
    assert sum("mix/source/web" in metrics for metrics in logged.values()) == 6
    assert len(mix) == len(open_export(path)) // 4
    last = logged[max(logged)]
    assert last["mix/source/web"] == pytest.approx(mix(5)["mix/source/web"])
