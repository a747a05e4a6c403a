"""Models of what trainers do to an order, and a table of trainers without one; no trainer is imported.

`TRAINERS[name].default(reading)` and `.best(reading)` give the rows of each global batch; `compare` compares them with
the plan.
"""

from __future__ import annotations

from difflib import get_close_matches

from dagster_divorder.errors import InputError
from dagster_divorder.trainers import samplers
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
        samplers.MEGATRON,
        samplers.OLMO_CORE,
        samplers.HF_TRAINER,
        samplers.TRL,
        samplers.TORCHTITAN,
        samplers.TORCHTITAN_GRAIN,
        samplers.MDS,
        samplers.LITDATA,
        samplers.DATALOADER,
        samplers.LIGHTNING,
        samplers.DATATROVE,
        *RECORD_READERS,
    )
}


def trainer_named(name: str) -> Trainer:
    """
    Raises:
        InputError: no trainer has this name; the message names the one that may be meant.
    """
    if name in TRAINERS:
        return TRAINERS[name]
    alike = name.lower().replace("_", "-")
    within = [known for known in TRAINERS if alike and alike in known]
    near = next(iter([*get_close_matches(alike, TRAINERS, n=1), *within]), None)
    meant = f"; did you mean {near!r}?" if near else ""
    raise InputError(f"trainer is {name!r}; expected one of {', '.join(TRAINERS)}{meant}")
