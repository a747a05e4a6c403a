"""Models of what trainers do to an order, one trainer a file, and a table of others; no trainer is imported.

`TRAINERS[name].default(reading)` and `.best(reading)` give the rows of each global batch; `compare` compares them with
the plan.
"""

from __future__ import annotations

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
from dagster_divorder.trainers.trainer import Reading, Trainer, rows_for_contiguous_ranks

__all__ = ["TRAINERS", "Kept", "Reading", "Trainer", "compare", "rows_for_contiguous_ranks"]

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
