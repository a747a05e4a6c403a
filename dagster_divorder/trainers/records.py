"""Trainers without a model of their sampler: what they read, and the lines with which they read it in its order.

They tokenise records of the curated output themselves, or stream an export. Without their lines they count as shuffled,
which most of them do; each row names the page of the setting that keeps the order. What else changes their batches:
packing makes other rows, a record longer than their maximum is dropped, and TRL's KTOTrainer splits pairs, 1,000 at a
time: chosen answers come first, then the rejected ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from dagster_divorder.trainers.samplers import HF_TRAINER, sequential
from dagster_divorder.trainers.trainer import Trainer

_reader = partial(Trainer, resumes=HF_TRAINER.resumes)
CONVERSATIONS = ("messages", "conversations", "prompt_completion", "alpaca")


def _trl(name: str, form: str, **options: Any) -> Trainer:
    return _reader(
        name=f"trl-{name.lower()}",
        title=f"TRL {name}Trainer",
        forms=(form,),
        best=sequential,
        documented="https://huggingface.co/docs/transformers/main_classes/trainer (train_sampling_strategy)",
        lines=f"""\
train_dataset = load_dataset("{{reader}}", data_files="{{pattern}}", split="train")
args = {name}Config(
    train_sampling_strategy="sequential",
    max_length=None,
    per_device_train_batch_size={{micro_batch}},
    gradient_accumulation_steps={{accumulation}},
    max_steps={{steps}},
)
""",
        **options,
    )


RECORD_READERS: tuple[Trainer, ...] = (
    _trl("DPO", "pairs"),
    _trl("Reward", "pairs"),
    _trl("KTO", "prompt_completion", default=sequential),
    _reader(
        name="trl-grpo",
        title="TRL GRPOTrainer",
        forms=("text", "prompt_completion"),
        documented="https://huggingface.co/docs/trl/grpo_trainer (shuffle_dataset)",
        lines="""\
train_dataset = load_dataset("{reader}", data_files="{pattern}", split="train")
args = GRPOConfig(
    shuffle_dataset=False,
    num_generations=8,
    per_device_train_batch_size=8 * {micro_batch},  # completions: all of a prompt count as one row
    gradient_accumulation_steps={accumulation},
    max_steps={steps},
)
""",
    ),
    _reader(
        name="axolotl",
        title="axolotl",
        forms=CONVERSATIONS,
        documented="https://docs.axolotl.ai/docs/config-reference.html (curriculum_sampling)",
        lines="""\
datasets:
  - path: {folder}
    ds_type: {reader}
    data_files: {pattern}
    split: train
    type: chat_template
shuffle_merged_datasets: false
curriculum_sampling: true
sample_packing: false
val_set_size: 0
micro_batch_size: {micro_batch}
gradient_accumulation_steps: {accumulation}
max_steps: {steps}
""",
    ),
    _reader(
        name="llama-factory",
        title="LLaMA-Factory",
        forms=(*CONVERSATIONS, "pairs"),
        documented="https://llamafactory.readthedocs.io/en/latest/advanced/arguments.html (disable_shuffling)",
        lines="""\
# dataset_info.json names the files {path}
disable_shuffling: true
packing: false
streaming: false
val_size: 0
per_device_train_batch_size: {micro_batch}
gradient_accumulation_steps: {accumulation}
max_steps: {steps}
""",
    ),
    _reader(
        name="ms-swift",
        title="ms-swift",
        forms=(*CONVERSATIONS, "pairs"),
        documented="https://swift.readthedocs.io/en/latest/Instruction/Command-line-parameters.html "
        "(dataset_shuffle, train_dataloader_shuffle)",
        lines="""\
--dataset {path}
--dataset_shuffle false
--train_dataloader_shuffle false
--split_dataset_ratio 0
--packing false
--per_device_train_batch_size {micro_batch}
--gradient_accumulation_steps {accumulation}
--max_steps {steps}
""",
    ),
    _reader(
        name="hf-streaming",
        title="datasets, streaming",
        formats=("parquet",),
        documented="https://huggingface.co/docs/datasets/package_reference/main_classes (split_dataset_by_node)",
        lines="""\
dataset = load_dataset("parquet", data_dir="{pattern}", split="train", streaming=True)
dataset = split_dataset_by_node(dataset, rank, {world_size}, strategy="examples")
loader = DataLoader(dataset, batch_size={micro_batch}, num_workers=1, drop_last=True)
""",
        resumes="its state counts a rank's own rows, so another world size reads some rows twice and skips others",
    ),
)
