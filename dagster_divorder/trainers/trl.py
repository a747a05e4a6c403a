"""TRL's trainers: they sample as the Hugging Face Trainer does, except GRPO's, which has its own sampler.

SFTTrainer reads the rows of an export. Two settings change the rows: packing makes other rows, and max_length cuts
them. The other trainers read the records of a curated output, and max_length drops records, which shifts every later
batch. KTOTrainer splits pairs, 1,000 at a time: chosen answers come first, then the rejected ones. So its model covers
only records with a `label`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dagster_divorder.trainers import hf_trainer
from dagster_divorder.trainers.trainer import Reading, Rows, Trainer, consecutive, pass_by_pass

RUN = """\
    per_device_train_batch_size={micro_batch},
    gradient_accumulation_steps={accumulation},
    max_steps={steps},
)
"""
RECORDS = """\
train_dataset = load_dataset("{reader}", data_files="{path}", split="train")
"""


def _shuffled_prompts(reading: Reading) -> Rows:
    """RepeatSampler: one generator for all epochs, and whole batches only."""
    import torch

    generator = torch.Generator().manual_seed(reading.seed)
    epochs = [torch.randperm(reading.length, generator=generator).numpy() for _ in range(reading.passes)]
    return np.concatenate([consecutive(order, reading.batch) for order in epochs])


SFT = Trainer(
    name="trl",
    title="TRL SFTTrainer",
    formats=("parquet",),
    default=hf_trainer.shuffled,
    best=hf_trainer.sequential,
    lines=f"""\
SFTConfig(
    train_sampling_strategy="sequential",
    packing=False,
    max_length=None,
    padding_free=True,
{RUN}""",
    resumes=hf_trainer.TRAINER.resumes,
)
DPO = replace(
    SFT,
    name="trl-dpo",
    title="TRL DPOTrainer",
    formats=(),
    forms=("pairs",),
    lines=f"""\
{RECORDS}args = DPOConfig(
    train_sampling_strategy="sequential",
    max_length=None,
{RUN}""",
)
REWARD = replace(
    DPO, name="trl-reward", title="TRL RewardTrainer", lines=DPO.lines.replace("DPOConfig", "RewardConfig")
)
KTO = replace(
    DPO,
    name="trl-kto",
    title="TRL KTOTrainer",
    forms=("prompt_completion",),
    default=hf_trainer.sequential,
    lines=DPO.lines.replace("DPOConfig", "KTOConfig"),
)
GRPO = replace(
    DPO,
    name="trl-grpo",
    title="TRL GRPOTrainer",
    forms=("text", "template", "prompt_completion"),
    default=_shuffled_prompts,
    best=pass_by_pass,
    lines=f"""\
{RECORDS}args = GRPOConfig(
    shuffle_dataset=False,
    num_generations=8,
    per_device_train_batch_size=8 * {{micro_batch}},  # completions: all of a prompt count as one row
    gradient_accumulation_steps={{accumulation}},
    max_steps={{steps}},
)
""",
)
