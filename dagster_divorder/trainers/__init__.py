"""Models of what trainers do to an order, one trainer a file, and a table of others; no trainer is imported.

`TRAINERS[name].default(reading)` and `.best(reading)` give the rows of each global batch; `compare` compares them with
the plan.
"""

from __future__ import annotations

from difflib import get_close_matches

from dagster_divorder.errors import InputError
from dagster_divorder.trainers import (
    dataloader,
    grain,
    hf_trainer,
    lightning,
    litdata,
    mds,
    megatron,
    nanotron,
    olmo_core,
    torchtitan,
)
from dagster_divorder.trainers.records import RECORD_READERS
from dagster_divorder.trainers.replay import Kept, compare
from dagster_divorder.trainers.trainer import Reading, Trainer, layout_for, rows_for_contiguous_ranks

__all__ = [
    "TRAINERS",
    "Kept",
    "Reading",
    "Trainer",
    "compare",
    "layout_for",
    "rows_for_contiguous_ranks",
    "trainer_named",
]

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        megatron.TRAINER,
        olmo_core.TRAINER,
        hf_trainer.TRAINER,
        hf_trainer.SFT,
        torchtitan.TRAINER,
        mds.TRAINER,
        litdata.TRAINER,
        dataloader.TRAINER,
        grain.TRAINER,
        lightning.TRAINER,
        nanotron.TRAINER,
        *RECORD_READERS,
    )
}
OTHER_NAMES = {
    "hf": "hf-trainer",
    "huggingface": "hf-trainer",
    "transformers": "hf-trainer",
    "sft": "trl",
    "dpo": "trl-dpo",
    "kto": "trl-kto",
    "grpo": "trl-grpo",
    "megatron-lm": "megatron",
    "nemo": "megatron",
    "olmo": "olmo-core",
    "titan": "torchtitan",
    "mosaic": "mds",
    "streaming": "mds",
    "composer": "mds",
    "torch": "dataloader",
    "pytorch": "dataloader",
    "torchdata": "dataloader",
    "datatrove": "nanotron",
}
"""What people call a trainer -> its name here."""


def trainer_named(name: str) -> Trainer:
    """
    Raises:
        InputError: no trainer has this name; the message names the one that may be meant.
    """
    if name in TRAINERS:
        return TRAINERS[name]
    alike = name.lower().replace("_", "-")
    near = OTHER_NAMES.get(alike) or next(iter(get_close_matches(alike, TRAINERS, n=1)), None)
    meant = f"; did you mean {near!r}?" if near else ""
    raise InputError(f"trainer is {name!r}; expected one of {', '.join(TRAINERS)}{meant}")
