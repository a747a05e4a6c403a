"""How much of a plan a trainer's global batches keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dagster_divorder.errors import InputError
from dagster_divorder.trainers.trainer import Rows


@dataclass(frozen=True)
class Difference:
    """A global batch whose rows differ from the plan's."""

    batch: int
    """From 0."""
    expected: Rows
    read: Rows
    """Both ascending, (B,), or fewer if the batch is incomplete."""
    common: int
    """Rows that are in both."""


@dataclass(frozen=True)
class Kept:
    """Global batches read, compared with the plan's."""

    batches: int
    """Whole batches compared: the first ones, as many as both have. An incomplete last batch of the plan is not judged:
    trainers drop it, fill it up or read it."""
    kept: int
    """Compared batches that hold the plan's rows, in any order."""
    first: Difference | None
    missing_batches: int
    """Whole batches of the plan after the last one read."""
    extra_batches: int
    """Batches read after the plan's last one."""
    repeated: int
    """Reads of rows beyond the plan's number, summed over all batches read."""
    never_read: int
    """Planned reads of rows that are missing."""

    @property
    def text(self) -> str:
        """A short text, such as `97 of 97 batches`."""
        return f"{self.kept:,} of {self.batches + self.missing_batches:,} batches"

    @property
    def in_order(self) -> bool:
        """Whether every whole batch of the plan was read at its step. Batches after the plan's last are not judged."""
        return self.kept == self.batches and not self.missing_batches


def compare(batches: Rows, plan: Rows) -> Kept:
    """Compares the batches read with the plan's. batches, plan: the rows of each global batch, all epochs one after
    another, int64 (batches, B); -1 fills up an incomplete last batch. Linear except for sorting within batches: seconds
    for millions of rows.

    Raises:
        InputError: the two have batches of different sizes.
    """
    if batches.ndim != 2 or plan.ndim != 2 or batches.shape[1] != plan.shape[1]:
        raise InputError(
            f"Batches of shape {batches.shape} cannot be compared with a plan of shape {plan.shape}: "
            "give both as (batches, sequences of a global batch) for the same batch"
        )
    whole = len(plan) - bool(len(plan) and plan[-1].min() < 0)
    count = min(len(batches), whole)
    read, expected = np.sort(batches[:count], axis=1), np.sort(plan[:count], axis=1)
    differ = np.flatnonzero((read != expected).any(axis=1))
    first = None
    if differ.size:
        at = int(differ[0])
        ours, theirs = expected[at][expected[at] >= 0], read[at][read[at] >= 0]
        first = Difference(at, ours, theirs, np.intersect1d(ours, theirs).size)
    size = 1 + max(batches.max(initial=-1), plan.max(initial=-1))
    surplus = np.bincount(batches[batches >= 0], minlength=size) - np.bincount(
        plan[plan >= 0], minlength=size
    )
    return Kept(
        batches=count,
        kept=count - differ.size,
        first=first,
        missing_batches=whole - count,
        extra_batches=max(len(batches) - len(plan), 0),
        repeated=int(surplus[surplus > 0].sum()),
        never_read=int(-surplus[surplus < 0].sum()),
    )
