"""How much of an order a trainer keeps: compares its global batches with the plan's.

Positions count sequences in the plan's order: position e * S + i is place i of epoch e.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dagster_divorder.trainers.compare import Kept, compare
from dagster_divorder.trainers.trainer import Reading, Trainer, rows_for_contiguous_ranks

ONE_RANK = {"world_size": 1, "workers": 1}
"""Settings of `exports` that store rows in the order of training."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Properties of an export that decide how it is read: sequences S of an epoch, epochs, tokens of a sequence,
    sequences of a global batch, rows of each file. layout: the `world_size`, `micro_batch` and `workers` that its rows
    are laid out for (`rows_for_contiguous_ranks`); empty for the order of training."""

    path: str
    prefix: str
    """Prefix of the names of its files."""
    sequences: int
    epochs: int
    sequence_length: int
    batch: int
    files: tuple[int, ...]
    layout: Mapping[str, int]

    @classmethod
    def of(cls, manifest: Mapping[str, Any], path: str) -> Shape:
        """The shape of an export with this manifest."""
        return cls(
            path=path,
            prefix=manifest.get("prefix", "train"),
            sequences=manifest["sequences"],
            epochs=manifest["epochs"],
            sequence_length=manifest["sequence_length"],
            batch=manifest["batch"],
            # A text export has rows of text, not of tokens.
            files=tuple(manifest.get("rows_of_files", ())) if manifest["epochs_stored"] == "copies" else (),
            layout=manifest["layout"],
        )

    def laid(self, layout: Mapping[str, int]) -> Shape:
        """The same export with another layout, in files of the same size."""
        shape = replace(self, layout=layout, files=())
        size = max(self.files, default=0)
        files = tuple(min(size, shape.rows - first) for first in range(0, shape.rows, size)) if size else ()
        return replace(shape, files=files)

    @property
    def rows(self) -> int:
        """Rows in all files, if these hold every epoch."""
        total, step = self.sequences * self.epochs, math.prod(self.layout.values())
        return total // step * step

    def positions(self) -> np.ndarray:
        """Row of the files -> position, int64."""
        total = self.sequences * self.epochs
        return rows_for_contiguous_ranks(total, **self.layout) if self.layout else np.arange(total)

    def reading(
        self,
        *,
        world_size: int | None = None,
        micro_batch: int | None = None,
        workers: int | None = None,
        nodes: int | None = None,
    ) -> Reading:
        """How a trainer reads the export. Defaults for None: the layout's numbers; without a layout two ranks, because
        a single rank may keep an order that several lose.

        Raises:
            InputError: see `Reading`; for example, world size and micro-batch do not divide the batch.
        """
        # If the world size differs from the layout's, the rest of the layout is no default either.
        laid = self.layout if world_size in (None, self.layout.get("world_size")) else {}
        usual = {"world_size": math.gcd(self.batch, 2), "micro_batch": 1, "workers": 0, "nodes": 1, **laid}
        asked = {"world_size": world_size, "micro_batch": micro_batch, "workers": workers, "nodes": nodes}
        return Reading(
            # A layout may leave rows out; the export then counts as one epoch of the other rows.
            rows=self.rows if self.layout else self.sequences,
            epochs=1 if self.layout else self.epochs,
            stored_epochs=True,
            batch=self.batch,
            files=self.files,
            **usual | {name: number for name, number in asked.items() if number is not None},
        )


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way in which a trainer reads a plan. lines: with our configuration lines, else with its defaults. layout: of
    the export; None for the present one, empty for the order of training. read: positions, int64 (batches, B), -1 for
    nothing."""

    lines: bool
    layout: Mapping[str, int] | None = None
    kept: Kept
    read: np.ndarray

    @property
    def needs(self) -> str:
        """The required settings, in words."""
        layout = "" if self.layout is None else export_keys(self.layout)
        lines = "its lines" if self.lines else ""
        return ", and ".join(filter(None, (layout, lines))) or "nothing set"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """How much of a plan a trainer keeps: with its defaults (`default`), at best with this export (`here`), and at best
    with any layout (`best`). Each keeps at least as much as the one before. Of equally good ways, `here` and `best`
    need the fewest settings."""

    trainer: Trainer
    reading: Reading
    default: Way
    here: Way
    best: Way
    lines: str | None
    """The trainer's configuration for `best`; None if the defaults are best and the lines would lose the order."""


def export_keys(layout: Mapping[str, int]) -> str:
    """The settings of a layout."""
    return ", ".join(f"exports.{name} = {number}" for name, number in (layout or ONE_RANK).items())


def replay(export: Shape, trainer: Trainer, **asked: int | None) -> Replay:
    """Replays a trainer's sampler over an export. asked: see `Shape.reading`.

    Raises:
        InputError: see `Shape.reading`.
    """
    reading = export.reading(**asked)
    ranks = {name: getattr(reading, name) for name in ("world_size", "micro_batch", "workers", "nodes")}
    way = partial(_way, export, trainer, ranks)
    default, with_lines = way(False), way(True)
    here = best = _better(default, with_lines)
    for layout in _layouts(export, trainer, reading):
        if not best.kept.in_order:
            best = _better(best, way(True, layout))
    useful = best.lines or _better(with_lines, default) is with_lines
    lines = trainer.configuration(
        reading, path=export.path, prefix=export.prefix, sequence_length=export.sequence_length
    )
    return Replay(
        trainer=trainer,
        reading=reading,
        default=default,
        here=here,
        best=best,
        lines=lines if useful else None,
    )


def keeps_order(export: Shape, trainer: Trainer) -> bool:
    """Whether a trainer with its lines reads the batches of the plan from the rows as they lie."""
    return _way(export, trainer, {}, lines=True).kept.in_order


def _way(
    export: Shape,
    trainer: Trainer,
    ranks: Mapping[str, int],
    lines: bool,
    layout: Mapping[str, int] | None = None,
) -> Way:
    shape = export if layout is None else export.laid(layout)
    rows = (trainer.best if lines else trainer.default)(shape.reading(**ranks))
    read = np.where(rows < 0, -1, shape.positions()[rows])
    total = export.sequences * export.epochs
    plan = np.append(np.arange(total), np.full(-total % export.batch, -1)).reshape(-1, export.batch)
    return Way(lines=lines, layout=layout, kept=compare(read, plan), read=read)


def _better(one: Way, other: Way) -> Way:
    """The way that keeps more; the first if both are equal."""
    first, second = (
        (way.kept.in_order, way.kept.kept, -way.kept.never_read, -way.kept.repeated) for way in (one, other)
    )
    return other if second > first else one


def _layouts(export: Shape, trainer: Trainer, reading: Reading) -> list[Mapping[str, int]]:
    """Other layouts of an export for a trainer: the order of training, and layouts for its ranks."""
    layouts: list[Mapping[str, int]] = [{}]
    if trainer.contiguous_ranks:
        ranks = {"world_size": reading.world_size, "micro_batch": reading.micro_batch}
        # Some lines set the number of workers.
        layouts += [{**ranks, "workers": workers} for workers in dict.fromkeys((max(1, reading.workers), 1))]
    return [
        layout for layout in layouts if layout != export.layout and export.laid(layout).rows >= export.batch
    ]
