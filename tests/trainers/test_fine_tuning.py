"""Trainings of a tiny model by TRL, over what a run wrote: every step reads the plan's rows, with the plan's labels."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.readers.export import read_export_manifest
from dagster_divorder.settings import Settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.output.exports import records_shape
from dagster_divorder.stages.text.base_model import load_base_model
from dagster_divorder.store.manifests import neighbour
from dagster_divorder.trainers import TRAINERS
from dagster_divorder.trainers.replay import Shape
from tests.conftest import write_jsonl
from tests.pipeline.test_masked_exports import slow_labels
from tests.test_verify import TOPICS, chats
from tests.trainers.test_trl import QUIET

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

Make = Callable[..., Settings]


def tiny_model(tokenizer: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    ends = {"pad_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **ends))


def exported(make_settings: Make, tmp_path: Path, **sections: Any) -> tuple[Settings, Shape, Any]:
    """Settings after their run over conversations, the shape of the export, and its tokenizer."""
    from transformers import AutoTokenizer

    write_jsonl(tmp_path / "chats.jsonl", chats(48))
    settings = make_settings(
        input={"paths": (str(tmp_path / "chats.jsonl"),), "format": "messages"},
        exports={"formats": ("parquet",), "path": tmp_path / "exports"},
        sequence={"length": 96, "batch": 4},
        **sections,
    )
    run_all(settings, Silent())
    folder = settings.exports.path / "parquet"
    tokenizer = AutoTokenizer.from_pretrained(neighbour(folder))
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    return settings, Shape.of(read_export_manifest(folder), str(folder)), tokenizer


@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("method", ["best_fit", "none"])
def test_sft_trains_on_the_plans_labels_at_every_step(
    method: str, padding_free: bool, make_settings: Make, tmp_path: Path
) -> None:
    trl = pytest.importorskip("trl")
    from datasets import load_dataset

    settings, shape, tokenizer = exported(make_settings, tmp_path, packing={"method": method})
    batches: list[dict[str, Any]] = []

    class Recorded(trl.SFTTrainer):  # type: ignore[name-defined,misc]
        def compute_loss(self, model: Any, inputs: dict[str, Any], *arguments: Any, **options: Any) -> Any:
            batches.append({name: value.numpy() for name, value in inputs.items() if hasattr(value, "numpy")})
            return super().compute_loss(model, inputs, *arguments, **options)

    lines = TRAINERS["trl"].configuration(
        shape.reading(world_size=1, micro_batch=2), path=shape.path, prefix="", sequence_length=96
    )
    config = partial(trl.SFTConfig, output_dir=str(tmp_path / "model"), **QUIET)
    arguments = eval(
        lines.replace("padding_free=True", f"padding_free={padding_free}"), {"SFTConfig": config}
    )
    data = load_dataset("parquet", data_dir=shape.path, split="train", cache_dir=str(tmp_path / "cache"))
    Recorded(tiny_model(tokenizer), arguments, train_dataset=data, processing_class=tokenizer).train()

    ids = [row["input_ids"] for row in data]
    steps = shape.sequences // settings.sequence.batch
    read = steps * settings.sequence.batch
    assert steps > 5 and len(batches) == read // 2
    labels = slow_labels(settings)
    assert all(-100 in row and set(row) != {-100} for row in labels)
    for number, batch in enumerate(batches):
        rows = slice(2 * number, 2 * number + 2)
        if padding_free:
            np.testing.assert_array_equal(batch["input_ids"][0], np.concatenate(ids[rows]))
            np.testing.assert_array_equal(batch["labels"][0], np.concatenate(labels[rows]))
            lengths = [length for row in range(rows.start, rows.stop) for length in data[row]["seq_lengths"]]
            np.testing.assert_array_equal(
                batch["position_ids"][0], np.concatenate([np.arange(length) for length in lengths])
            )
            np.testing.assert_array_equal(batch["cu_seq_lens_q"], np.cumsum([0, *lengths]))
        else:
            width = max(map(len, ids[rows]))
            padded = [np.pad(row, (0, width - len(row)), constant_values=-100) for row in labels[rows]]
            np.testing.assert_array_equal(batch["labels"], padded)
            np.testing.assert_array_equal(
                batch["attention_mask"].sum(axis=1), [len(row) for row in ids[rows]]
            )


def test_documents_of_a_row_attend_to_themselves_only_where_verify_says_so(
    make_settings: Make, tmp_path: Path
) -> None:
    """The model's own answers: a document gives the same logits in its row as alone, or not."""
    pytest.importorskip("trl")
    import torch
    from datasets import load_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    _, shape, tokenizer = exported(make_settings, tmp_path)
    data = load_dataset("parquet", data_dir=shape.path, split="train", cache_dir=str(tmp_path / "cache"))
    row = next(row for row in data if len(row["seq_lengths"]) > 1)
    first, second = row["seq_lengths"][:2]
    model = tiny_model(tokenizer).eval()
    with torch.no_grad():
        alone = model(torch.tensor([row["input_ids"][first : first + second]])).logits[0]
        for padding_free in (True, False):
            batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=padding_free)([row])
            read = {
                name: batch[name] for name in ("input_ids", "position_ids", "attention_mask") if name in batch
            }
            together = model(**read, use_cache=False).logits[0, first : first + second]
            assert torch.allclose(alone, together, atol=1e-5) == padding_free


def test_dpo_reads_the_pairs_of_an_output_in_their_order(make_settings: Make, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    from datasets import load_dataset
    from transformers import AutoTokenizer

    draw = random.Random(0)
    pairs = []
    for number in range(50):
        words = TOPICS[number % 3].split()
        said = [" ".join(draw.choices(words, k=draw.randint(2, 9))) for _ in range(2)]
        pairs.append(
            {"prompt": f"{number}: what?", "chosen": f" {said[0]}.", "rejected": f" {said[1]} or {number}."}
        )
    write_jsonl(tmp_path / "pairs.jsonl", pairs)
    settings = make_settings(
        input={"paths": (str(tmp_path / "pairs.jsonl"),), "format": "pairs"},
        sequence={"length": 96, "batch": 4},
    )
    run_all(settings, Silent())
    run = open_run(settings)
    shape = records_shape(run, settings.output.path)
    reading = shape.reading(world_size=1, micro_batch=2)
    names: dict[str, Any] = {
        "DPOConfig": partial(trl.DPOConfig, output_dir=str(tmp_path / "model"), **QUIET),
        "load_dataset": partial(load_dataset, cache_dir=str(tmp_path / "cache")),
    }
    exec(TRAINERS["trl-dpo"].configuration(reading, path=shape.path, prefix="", sequence_length=0), names)
    tokenizer = AutoTokenizer.from_pretrained(load_base_model(run).directory)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = trl.DPOTrainer(
        tiny_model(tokenizer),
        ref_model=tiny_model(tokenizer),
        args=names["args"],
        train_dataset=names["train_dataset"],
        processing_class=tokenizer,
    )
    read: list[str] = []
    collate = trainer.data_collator

    def recorded(examples: list[dict[str, Any]]) -> Any:
        read.extend(tokenizer.decode(example["prompt_ids"]) for example in examples)
        return collate(examples)

    trainer.data_collator = recorded
    trainer.train()
    planned = [record["prompt"] for record in names["train_dataset"]]
    assert sorted(planned) == sorted(pair["prompt"] for pair in pairs)
    assert planned != [pair["prompt"] for pair in pairs]
    # The loader is a micro-batch ahead.
    assert read[:48] == planned[:48]
