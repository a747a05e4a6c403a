"""Models of what trainers do to an order, one trainer a file; no trainer is imported.

`TRAINERS[name].default(reading)` and `.best(reading)` give the rows of each global batch, and `compare` compares them
with the plan.
"""

from __future__ import annotations

from dagster_divorder.trainers import (
    axolotl,
    dataloader,
    grain,
    hf_streaming,
    hf_trainer,
    lightning,
    litdata,
    llama_factory,
    mds,
    megatron,
    ms_swift,
    nanotron,
    olmo_core,
    torchtitan,
    torchtitan_streaming,
    torchtune,
    trl,
)
from dagster_divorder.trainers.compare import Kept, compare
from dagster_divorder.trainers.trainer import Reading, Trainer, rows_for_contiguous_ranks

__all__ = ["TRAINERS", "Kept", "Reading", "Trainer", "compare", "rows_for_contiguous_ranks"]

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        megatron.TRAINER,
        olmo_core.TRAINER,
        hf_trainer.TRAINER,
        hf_streaming.TRAINER,
        trl.SFT,
        torchtitan.TRAINER,
        torchtitan_streaming.TRAINER,
        mds.TRAINER,
        litdata.TRAINER,
        dataloader.TRAINER,
        grain.TRAINER,
        lightning.TRAINER,
        nanotron.TRAINER,
        trl.DPO,
        trl.REWARD,
        trl.KTO,
        trl.GRPO,
        axolotl.TRAINER,
        llama_factory.TRAINER,
        ms_swift.TRAINER,
        torchtune.TRAINER,
    )
}
