"""What the trainers of Hugging Face and TRL read, against their models."""

from __future__ import annotations

from collections.abc import Sized
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from dagster_divorder.trainers import TRAINERS, Reading
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES, ascending, global_batches

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("rows", [96, 101])
@pytest.mark.parametrize(("world_size", "micro_batch"), RANKS_AND_MICRO_BATCHES)
@pytest.mark.parametrize("strategy", ["random", "sequential"])
def test_the_hugging_face_trainer_reads_what_the_models_say(
    strategy: str, world_size: int, micro_batch: int, rows: int
) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import DataLoader
    from transformers import Trainer

    reading = Reading(rows=rows, batch=16, world_size=world_size, micro_batch=micro_batch, seed=42)
    dataset: Sized = range(rows)
    arguments = SimpleNamespace(train_sampling_strategy=strategy)
    sampler = Trainer._get_train_sampler(SimpleNamespace(args=arguments), dataset)  # type: ignore[arg-type]
    ranks = [
        accelerate.prepare_data_loader(
            DataLoader(dataset, micro_batch, sampler=sampler),  # type: ignore[arg-type]
            num_processes=world_size,
            process_index=rank,
            put_on_device=False,
            use_seedable_sampler=True,
            data_seed=reading.seed,
        )
        for rank in range(world_size)
    ]
    read = global_batches([list(loader) for loader in ranks], reading, step_on_rest=True)
    model = TRAINERS["hf-trainer"].best if strategy == "sequential" else TRAINERS["hf-trainer"].default
    np.testing.assert_array_equal(ascending(model(reading)), read)


def test_the_hugging_face_trainer_shuffles_by_default_and_takes_its_lines() -> None:
    from transformers import TrainingArguments

    reading = Reading(rows=96, batch=16, world_size=2, micro_batch=2)
    lines = TRAINERS["hf-trainer"].configuration(reading, path="", prefix="train", sequence_length=8)
    arguments = eval(lines, {"TrainingArguments": TrainingArguments})
    assert arguments.train_sampling_strategy == "sequential"
    assert arguments.max_steps == 6
    assert TrainingArguments().train_sampling_strategy == "random"


@pytest.mark.parametrize("strategy", ["group_by_length", "batch_rebalance"])
def test_strategies_that_look_at_lengths_lose_the_order(strategy: str, tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    rows, batch = 256, 16
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        train_sampling_strategy=strategy,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        use_cpu=True,
        report_to="none",
    )
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    # Lengths come and go along the plan, so that each of its batches has short rows and long ones.
    data = Dataset.from_dict({"input_ids": [[row] * (1 + row % 16) for row in range(rows)]})
    trainer = Trainer(LlamaForCausalLM(LlamaConfig(vocab_size=rows, **sizes)), arguments, train_dataset=data)
    read = np.hstack(list(trainer.get_train_dataloader().batch_sampler))
    batches = np.sort(read.reshape(-1, batch), axis=1)
    assert sorted(read.tolist()) == list(range(rows))
    assert not (batches == np.arange(rows).reshape(-1, batch)).all(axis=1).any()
    lengths = 1 + batches % 16
    # Grouped rows are of a few lengths; the other strategy deals all lengths out within a batch of its own.
    assert (np.ptp(lengths, axis=1).mean() < 8) == (strategy == "group_by_length")


@pytest.mark.parametrize("way", ["default", "best"])
def test_trl_reads_what_the_models_say(way: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from torch.utils.data import DataLoader
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    reading = Reading(rows=101, batch=16, world_size=2, micro_batch=2, seed=42)
    trainer = TRAINERS["trl"]
    config = partial(trl.SFTConfig, output_dir=str(tmp_path), bf16=False, use_cpu=True, report_to="none")
    lines = trainer.configuration(reading, path="", prefix="train", sequence_length=2)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    tokens = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    sft = trl.SFTTrainer(
        model=LlamaForCausalLM(LlamaConfig(vocab_size=200, **sizes)),
        args=eval(lines, {"SFTConfig": config}) if way == "best" else config(per_device_train_batch_size=2),
        train_dataset=Dataset.from_dict({"input_ids": [[row, row] for row in range(reading.rows)]}),
        processing_class=tokens,
    )
    # One process is started here, so its loader is dealt to the ranks as accelerate does under torchrun.
    alone = sft.get_train_dataloader()
    ranks = [
        accelerate.prepare_data_loader(
            DataLoader(
                sft.train_dataset["input_ids"],
                alone.batch_sampler.batch_size,
                sampler=sft._get_train_sampler(),
            ),
            num_processes=reading.world_size,
            process_index=rank,
            put_on_device=False,
            use_seedable_sampler=True,
        )
        for rank in range(reading.world_size)
    ]
    read = [[[int(row) for row in step[0]] for step in loader] for loader in ranks]
    expected = trainer.best(reading) if way == "best" else trainer.default(reading)
    np.testing.assert_array_equal(ascending(expected), global_batches(read, reading, step_on_rest=True))


def test_collators_keep_a_column_of_labels_make_their_own_or_refuse() -> None:
    from transformers import (
        DataCollatorForLanguageModeling,
        DataCollatorForSeq2Seq,
        DataCollatorWithFlattening,
        PreTrainedTokenizerFast,
    )

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0})), pad_token="a")
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [-100, 9]}]
    padded = DataCollatorForSeq2Seq(tokenizer)(rows)["labels"]
    assert padded.tolist() == [[-100, 6, 7], [-100, 9, -100]]
    assert DataCollatorWithFlattening()(rows)["labels"].tolist() == [[-100, 6, 7, -100, 9]]
    own = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    with pytest.raises(ValueError, match="Unable to create tensor"):
        own(rows)
    assert own([{"input_ids": row["input_ids"]} for row in rows])["labels"].tolist()[0] == [5, 6, 7]
