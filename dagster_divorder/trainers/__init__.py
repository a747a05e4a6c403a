"""Models of what trainers do to an order, one trainer a file; no trainer is imported.

`TRAINERS[name].default(reading)` and `.best(reading)` give the rows of each global batch, and `compare` compares them
with the plan.
"""

from __future__ import annotations

from dagster_divorder.trainers import (
    dataloader,
    grain,
    hf_streaming,
    hf_trainer,
    lightning,
    litdata,
    mds,
    megatron,
    nanotron,
    olmo_core,
    torchtitan,
    torchtitan_streaming,
    trl,
)
from dagster_divorder.trainers.compare import Kept, compare
from dagster_divorder.trainers.trainer import Reading, Trainer, rows_for_contiguous_ranks

__all__ = ["TRAINERS", "Kept", "Reading", "Trainer", "compare", "rows_for_contiguous_ranks"]

TRAINERS: dict[str, Trainer] = {
    module.TRAINER.name: module.TRAINER
    for module in (
        megatron,
        olmo_core,
        hf_trainer,
        hf_streaming,
        trl,
        torchtitan,
        torchtitan_streaming,
        mds,
        litdata,
        dataloader,
        grain,
        lightning,
        nanotron,
    )
}
