"""What TRL's trainers read of records in their order, with their defaults and with the lines for them."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading
from tests.conftest import ROOT, load_script, write_jsonl
from tests.trainers.replay import ascending, dealt_by_accelerate, global_batches

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

ROWS, COMPLETIONS = 101, 8
QUIET = {"bf16": False, "use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}


def tokens_and_model(words: int, reward: bool = False) -> tuple[Any, Any]:
    """A tokenizer of numbers, whose ids are 2 more, and a tiny model."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        LlamaForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    vocabulary = {"<pad>": 0, "<eos>": 1, **{f"{number}": number + 2 for number in range(words)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        intermediate_size=8,
        num_attention_heads=1,
        num_hidden_layers=1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        **({"num_labels": 1} if reward else {}),
    )
    model = (LlamaForSequenceClassification if reward else LlamaForCausalLM)(config)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"), model


def records(name: str) -> list[dict[str, Any]]:
    """Records whose prompts are their numbers."""
    prompts = [{"prompt": f"{row} 1"} for row in range(ROWS)]
    if name == "trl-grpo":
        return prompts
    if name == "trl-kto":
        return [{**row, "completion": " 2", "label": at % 3 > 0} for at, row in enumerate(prompts)]
    return [{**row, "chosen": " 2", "rejected": " 3"} for row in prompts]


def trainer_over(name: str, reading: Reading, path: Path, way: str) -> Any:
    """The real trainer, made of its lines, over records in a file; its defaults but for sizes."""
    trl = pytest.importorskip("trl")
    from datasets import load_dataset

    kind = {"trl-dpo": "DPO", "trl-reward": "Reward", "trl-kto": "KTO", "trl-grpo": "GRPO"}[name]
    config = partial(getattr(trl, f"{kind}Config"), output_dir=str(path.parent), **QUIET)
    names: dict[str, Any] = {"load_dataset": load_dataset, f"{kind}Config": config}
    lines = TRAINERS[name].configuration(reading, path=str(path), prefix="", sequence_length=0)
    if way == "default":
        sizes = "per_device_train_batch_size=2 * 8, gradient_accumulation_steps=4"
        lines = lines.split("args = ")[0] + f"args = {kind}Config({sizes})"
    exec(lines, names)
    tokens, model = tokens_and_model(ROWS, reward=kind == "Reward")
    more = {"DPO": {"ref_model": deepcopy(model)}, "KTO": {"ref_model": deepcopy(model)}}.get(kind, {})
    if kind == "GRPO":
        more = {"reward_funcs": lambda prompts, **columns: [0.0] * len(prompts)}
    return getattr(trl, f"{kind}Trainer")(
        model=model,
        args=names["args"],
        train_dataset=names["train_dataset"],
        processing_class=tokens,
        **more,
    )


@pytest.mark.parametrize("name", ["trl-dpo", "trl-reward", "trl-kto", "trl-grpo"])
def test_trl_reads_records_in_order_with_its_lines(name: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate.data_loader")
    reading = Reading(rows=ROWS, batch=16, world_size=2, micro_batch=2)
    write_jsonl(tmp_path / "curated.jsonl", records(name))
    trainer = trainer_over(name, reading, tmp_path / "curated.jsonl", "best")
    column = {"trl-reward": "chosen_ids", "trl-grpo": "prompt"}.get(name, "prompt_ids")
    first = [row if name == "trl-grpo" else row[0] - 2 for row in trainer.train_dataset[column]]
    rows = [int(str(row).split()[0]) for row in first]
    # One process is started here, so its loader is dealt to the ranks as accelerate does under torchrun.
    alone = trainer.get_train_dataloader()
    size = reading.micro_batch
    if name == "trl-grpo":
        # All completions of a step's prompts are made at once, here by each of the ranks; a process alone makes them of
        # half as many prompts.
        assert alone.batch_sampler.batch_size == COMPLETIONS * reading.batch // reading.world_size
        trainer.args.generation_batch_size *= reading.world_size
        size = alone.batch_sampler.batch_size
    ranks = dealt_by_accelerate(rows, size, trainer._get_train_sampler(), reading)
    if name == "trl-grpo":
        # A rank takes up the same prompts for each of its micro-batches, and their completions once.
        steps = [np.unique(np.concatenate(step)) for step in zip(*ranks, strict=True)]
        read = np.array(steps[:: trainer.args.steps_per_generation])
    else:
        read = global_batches(ranks, reading, step_on_rest=True)
    np.testing.assert_array_equal(ascending(TRAINERS[name].best(reading)), read)


def test_a_record_that_is_too_long_shifts_the_batches_unless_max_length_is_none(tmp_path: Path) -> None:
    reading = Reading(rows=ROWS, batch=16, micro_batch=2)
    rows = records("trl-dpo")
    rows[3]["prompt"] = "3 " * 1024
    write_jsonl(tmp_path / "curated.jsonl", rows)
    kept = {}
    for way in ("default", "best"):
        trainer = trainer_over("trl-dpo", reading, tmp_path / "curated.jsonl", way)
        kept[way] = [ids[0] - 2 for ids in trainer.train_dataset["prompt_ids"]]
    assert kept["best"] == list(range(ROWS))
    assert kept["default"] == [row for row in range(ROWS) if row != 3]


@pytest.mark.parametrize("name", ["glm4moe", "llama3", "qwen3"])
def test_labels_are_those_of_trl(name: str, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    benchmark = load_script(ROOT / "benchmarks/chats/trl_labels.py")
    row = benchmark.compare(name, tmp_path, benchmark.conversations(12))
    assert row["marks"] == row["completion"] == row["text"] == "12 of 12"
    # TRL's own training templates of the others add trained text: the end of a turn, a line feed, empty thoughts.
    assert (row["own"] == "12 of 12") == (name == "llama3")
