"""How much of an order a trainer keeps: compares its global batches with the plan's.

Position e * S + i is place i of epoch e in the plan's order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dagster_divorder.trainers.trainer import (
    Layout,
    Reading,
    Rows,
    Trainer,
    consecutive,
    layout_for,
    rows_for_contiguous_ranks,
)


@dataclass(frozen=True)
class Kept:
    """How many of a plan's batches were read."""

    batches: int
    """Whole batches of the plan. An incomplete last one is not judged: trainers drop it, fill it up or read it."""
    kept: int
    """Batches that were read at their step, in any order of rows."""

    @property
    def text(self) -> str:
        """A short text, such as `97 of 97 batches`."""
        return f"{self.kept:,} of {self.batches:,} batches"

    @property
    def in_order(self) -> bool:
        """Whether every batch was read at its step. Batches after the plan's last are not judged."""
        return self.kept == self.batches


def compare(batches: Rows, plan: Rows) -> Kept:
    """Compares the batches read with the plan's: the rows of each global batch, all epochs one after another, int64
    (batches, B); -1 fills up an incomplete last batch."""
    whole = len(plan) - bool(len(plan) and plan[-1].min() < 0)
    expected = np.sort(plan[:whole], axis=1)
    read = np.full_like(expected, -1)
    read[: len(batches)] = np.sort(batches[:whole], axis=1)
    return Kept(batches=whole, kept=int((read == expected).all(axis=1).sum()))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Properties of an export that decide how it is read: sequences S of an epoch, epochs, tokens of a sequence,
    sequences of a global batch. prefix: of the names of its files."""

    path: str = ""
    prefix: str = ""
    sequences: int
    epochs: int = 1
    sequence_length: int
    batch: int
    layout: Layout = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Mapping[str, Any], path: str) -> Shape:
        """The shape of an export with this manifest."""
        names = ("sequences", "epochs", "sequence_length", "batch", "layout")
        given = {name: manifest[name] for name in names}
        return cls(path=path, prefix=manifest.get("prefix", "train"), **given)

    def positions(self) -> Rows:
        """Row of the files, if these hold every epoch -> position, int64."""
        total = self.sequences * self.epochs
        return rows_for_contiguous_ranks(total, **self.layout) if self.layout else np.arange(total)

    def reading(self, **asked: int | None) -> Reading:
        """How a trainer reads the export. asked: `world_size`, `micro_batch`, `workers`. Defaults for None:
        the layout's numbers; without a layout the ranks count as two, because one may keep an order that several lose.

        Raises:
            InputError: see `Reading`; for example, world size and micro-batch do not divide the batch.
        """
        given = {name: number for name, number in asked.items() if number is not None}
        # If the world size differs from the layout's, the rest of the layout is no default either.
        same = given.get("world_size") in (None, self.layout.get("world_size"))
        known = {**(self.layout if same else {}), **given}
        ranks = {"world_size": math.gcd(self.batch // max(1, known.get("micro_batch", 1)), 2), **known}
        # A layout may leave rows out; the export then counts as one epoch of the other rows.
        rows, epochs = (len(self.positions()), 1) if self.layout else (self.sequences, self.epochs)
        return Reading(rows=rows, epochs=epochs, batch=self.batch, assumed="world_size" not in known, **ranks)

    def configuration(self, trainer: Trainer, reading: Reading) -> str:
        """The lines with which a trainer reads the export."""
        length = self.sequence_length
        return trainer.configuration(reading, path=self.path, prefix=self.prefix, sequence_length=length)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way in which a trainer reads a plan. needs: what it takes, in words. lines: with our configuration lines, or
    with its defaults. layout: of an export for it; None for the present one."""

    needs: str
    lines: bool
    layout: Layout | None
    kept: Kept


@dataclass(frozen=True, kw_only=True)
class Replay:
    """How much of a plan a trainer keeps: with its defaults (`default`), at best with this export (`here`), and at best
    with an export that is laid out for it (`best`); of equally good ways the one with the fewest settings."""

    trainer: Trainer
    reading: Reading
    default: Way
    here: Way
    best: Way
    lines: str | None
    """The trainer's configuration for `best`; None if the defaults are best and the lines would lose the order."""


def replay(export: Shape, trainer: Trainer, **asked: int | None) -> Replay:
    """Replays a trainer's sampler over an export. asked, raises: see `Shape.reading`."""
    reading = export.reading(**asked)
    ranks = {name: getattr(reading, name) for name in ("world_size", "micro_batch", "workers")}
    plan = consecutive(np.arange(export.sequences * export.epochs), export.batch)

    def way(laid_out: Shape, lines: bool, *needs: str) -> Way:
        rows = (trainer.best if lines else trainer.default)(laid_out.reading(**ranks))
        read = np.where(rows < 0, -1, laid_out.positions()[rows])
        return Way(
            needs=", and ".join([*needs, *(["its lines"] if lines else [])]) or "nothing set",
            lines=lines,
            layout=laid_out.layout if needs else None,
            kept=compare(read, plan),
        )

    default, with_lines = way(export, False), way(export, True)
    here = best = max(default, with_lines, key=lambda each: each.kept.kept)
    layout = layout_for(trainer.parts, reading.world_size, reading.micro_batch, max(1, reading.workers))
    laid_out = replace(export, layout=layout)
    if not best.kept.in_order and layout != export.layout and len(laid_out.positions()) >= export.batch:
        relaid = way(laid_out, True, export_keys({"trainer": trainer.name, **layout}))
        best = max(best, relaid, key=lambda each: each.kept.kept)
    lines = None
    if best.lines or with_lines.kept.kept == default.kept.kept:
        lines = export.configuration(trainer, reading)
    return Replay(trainer=trainer, reading=reading, default=default, here=here, best=best, lines=lines)


def export_keys(given: Mapping[str, str | int]) -> str:
    """Settings of `[exports]`, in words."""
    return ", ".join(f"exports.{name} = {json.dumps(value)}" for name, value in given.items())
