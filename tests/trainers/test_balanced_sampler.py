"""Trainers read what BalancedSampler says, epoch after epoch: the real ones, on one process or dealt to ranks."""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn, optim
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from dagster_divorder.torch import BalancedSampler, GlobalBatchSampler
from dagster_divorder.trainers import Reading
from tests.trainers.replay import global_batches
from tests.trainers.test_lightning import QUIET, as_lightning_reads

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


def reading_under(trainer: type[Any], balanced: BalancedSampler) -> type[Any]:
    """A trainer of Hugging Face or TRL whose own sampler is laid over the order."""

    class Balanced(trainer):  # type: ignore[misc]
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return balanced.under(super()._get_train_sampler(dataset))

    return Balanced


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_accelerate_deals_its_batches_to_ranks_in_order(world_size: int) -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    reading = Reading(rows=ROWS, batch=4, world_size=world_size, micro_batch=1)
    ranks = [
        accelerate.prepare_data_loader(
            DataLoader(range(ROWS), 1, sampler=sampler()),  # type: ignore[arg-type]
            num_processes=world_size,
            process_index=rank,
            put_on_device=False,
        )
        for rank in range(world_size)
    ]
    for epoch, order in enumerate(orders(2)):
        for loader in ranks:
            loader.set_epoch(epoch)
        batches = global_batches([list(loader) for loader in ranks], reading)
        assert sampler().kept(batches, epoch).text == "5 of 5 batches"
        assert batches[0].tolist() == sorted(order[:4])


class Rows(nn.Module):
    """Takes row numbers, and says which."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.ones_(nn.Linear(1, 1).weight))
        self.read: list[int] = []

    def forward(self, row: Any) -> dict[str, Any]:
        self.read += row.tolist()
        return {"loss": (self.weight * row).mean()}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_hugging_face_trainer_reads_epochs_and_resumes(workers: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"row": range(ROWS), **TABLE})

    def train(**resume: Any) -> list[int]:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            train_sampling_strategy="sequential",
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            num_train_epochs=3,
            save_steps=8,
            dataloader_num_workers=workers,
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        )
        model = Rows()
        trainer = reading_under(transformers.Trainer, sampler())(model, arguments, train_dataset=data)
        trainer.train(**resume)
        return model.read

    whole = [row for order in orders(3) for row in order]
    assert train() == whole
    # Of the second epoch, 21 + 2 x 4 rows are behind it.
    assert train(resume_from_checkpoint=str(tmp_path / "checkpoint-8")) == whole[29:]


@pytest.mark.parametrize("name", ["SFT", "DPO", "GRPO"])
def test_trl_reads_the_order_under_its_own_sampler(name: str, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<eos>": 1, **{f"{row}": row + 2 for row in range(ROWS)}}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary), **sizes, **special))
    rows = [f"{row}" for row in range(ROWS)]
    columns = {
        "SFT": {"text": rows},
        "DPO": {"prompt": rows, "chosen": [" 1"] * ROWS, "rejected": [" 2"] * ROWS},
        "GRPO": {"prompt": rows},
    }[name]
    read: list[int] = []

    def reward(prompts: list[str], **other: Any) -> list[float]:
        read.extend(map(int, prompts))
        return [0.0] * len(prompts)

    more: dict[str, Any] = {
        "SFT": {"packing": False, "max_length": None},
        "DPO": {},
        "GRPO": {"shuffle_dataset": False, "num_generations": 2, "max_completion_length": 2},
    }[name]
    configuration = getattr(trl, f"{name}Config")(
        output_dir=str(tmp_path),
        train_sampling_strategy="sequential",
        per_device_train_batch_size=4,
        num_train_epochs=2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **more,
    )
    trainer = reading_under(getattr(trl, f"{name}Trainer"), sampler())(
        model=model,
        args=configuration,
        train_dataset=Dataset.from_dict({**columns, **TABLE}),
        processing_class=tokens,
        **{"GRPO": {"reward_funcs": reward}, "DPO": {"ref_model": deepcopy(model)}}.get(name, {}),
    )
    if name != "GRPO":
        # What the collator is given, before it pads.
        collate = trainer.data_collator
        key = "input_ids" if name == "SFT" else "prompt_ids"

        def recorded(examples: list[dict[str, Any]]) -> Any:
            read.extend(example[key][0] - 2 for example in examples)
            return collate(examples)

        trainer.data_collator = recorded
    trainer.train()
    first, second = orders(2)
    if name == "GRPO":
        # Both of a prompt's completions are of one step, and two prompts fill one of 4; what does not is left out.
        assert read == np.repeat(first[:20] + second[:20], 2).tolist()
    else:
        assert read == first + second


@pytest.mark.parametrize("way", ["sampler", "batch sampler"])
def test_lightning_reads_epochs(way: str, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Recorder(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.rows = Rows()

        def training_step(self, batch: Any) -> Any:
            return self.rows(batch)["loss"]

        def configure_optimizers(self) -> Any:
            return optim.SGD(self.parameters(), lr=0.1)

    one, module = sampler(), Recorder()
    over = (
        {"batch_size": 4, "sampler": one} if way == "sampler" else {"batch_sampler": GlobalBatchSampler(one)}
    )
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=3, default_root_dir=tmp_path, **QUIET)
    trainer.fit(module, DataLoader(range(ROWS), **over))  # type: ignore[arg-type]
    size = ROWS if way == "sampler" else ROWS // 4 * 4
    assert module.rows.read == [row for order in orders(3) for row in order[:size]]


@pytest.mark.parametrize("ours", [True, False])
def test_lightnings_ranks_share_global_batches_unless_it_puts_its_own_sampler_over(ours: bool) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", use_distributed_sampler=not ours, **QUIET
    )
    read = []
    for rank in range(2):
        batches = GlobalBatchSampler(sampler(), micro_batch=1, rank=rank, world_size=2)
        over: dict[str, Any] = {"batch_sampler": batches} if ours else {"sampler": sampler()}
        loader = as_lightning_reads(trainer, DataLoader(range(ROWS), **over))  # type: ignore[arg-type]
        if not ours:
            loader.sampler.rank = rank  # this process is rank 0
        read.append(list(loader))
    batches_read = global_batches(read, Reading(rows=ROWS, batch=4, world_size=2, micro_batch=1))
    assert sampler().kept(batches_read).text == ("5 of 5 batches" if ours else "0 of 5 batches")


def test_trainers_that_take_a_class_path_construct_it() -> None:
    """SkyRL: ClassName(examples, **sampler_kwargs). verl: ClassName(data_source=..., data_config=...), of a class that
    is an AbstractSampler of its own, whose shape stands here for it."""
    module, _, name = "dagster_divorder.torch.BalancedSampler".rpartition(".")
    examples = [{"input_ids": [1, 2, 3], "topic": topic} for topic in TABLE["topic"]]
    trainer_sampler = getattr(import_module(module), name)(examples, by="topic", batch_size=4)
    assert list(trainer_sampler) == orders(1)[0]

    class AbstractSampler(Sampler[int]):
        def __init__(self, data_source: Any, data_config: Any) -> None:
            raise NotImplementedError

    class PromptSampler(BalancedSampler, AbstractSampler):
        def __init__(self, data_source: Any, data_config: Any) -> None:
            BalancedSampler.__init__(
                self,
                data_source.dataframe,
                by=data_config.sampler.by,
                batch_size=data_config.train_batch_size,
            )

    config = SimpleNamespace(train_batch_size=4, sampler=SimpleNamespace(by="topic"))
    trainer_sampler = PromptSampler(data_source=SimpleNamespace(dataframe=TABLE), data_config=config)
    assert isinstance(trainer_sampler, AbstractSampler)
    assert list(trainer_sampler.under(SequentialSampler(range(ROWS)))) == orders(1)[0]
