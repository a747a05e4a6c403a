"""How much of an order survives a trainer: its global batches, held against the plan's.

Positions count the sequences as they are to be read: position e * S + i is place i of epoch e.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dagster_divorder.trainers.compare import Kept, compare
from dagster_divorder.trainers.trainer import Reading, Trainer, rows_for_contiguous_ranks


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What of an export decides how it is read: sequences S of an epoch, epochs, tokens of a sequence, sequences of a
    global batch, rows of each file, and for which `world_size`, `micro_batch` and `workers` its rows lie
    (`rows_for_contiguous_ranks`), if they do not lie in the order of training."""

    path: str
    prefix: str
    """How the names of its files begin."""
    sequences: int
    epochs: int
    sequence_length: int
    batch: int
    files: tuple[int, ...]
    layout: Mapping[str, int]

    @classmethod
    def of(cls, manifest: Mapping[str, Any], path: str) -> Shape:
        """That of an export, by its manifest."""
        return cls(
            path=path,
            prefix=manifest.get("prefix", "train"),
            sequences=manifest["sequences"],
            epochs=manifest["epochs"],
            sequence_length=manifest["sequence_length"],
            batch=manifest["batch"],
            files=tuple(manifest["rows_of_files"]) if manifest["epochs_stored"] == "copies" else (),
            layout=manifest["layout"],
        )

    def positions(self) -> np.ndarray:
        """The position that each row of the files holds, int64."""
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
        """How a trainer reads it; what is not said is as the rows lie, else two ranks: one keeps what more lose.

        Raises:
            InputError: the world size and micro-batch do not divide the batch, or the like.
        """
        usual = {
            "world_size": math.gcd(self.batch, 2),
            "micro_batch": 1,
            "workers": 0,
            "nodes": 1,
            **self.layout,
        }
        given = {"world_size": world_size, "micro_batch": micro_batch, "workers": workers, "nodes": nodes}
        return Reading(
            # An export whose rows do not fill every rank's part is one epoch of what is left.
            rows=len(self.positions()) if self.layout else self.sequences,
            epochs=1 if self.layout else self.epochs,
            stored_epochs=True,
            batch=self.batch,
            files=self.files,
            **usual | {name: number for name, number in given.items() if number is not None},
        )


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a trainer keeps of a plan, as it comes (`default`) and with its `lines` (`best`), and the positions that it
    reads, int64 (batches, B), -1 for nothing."""

    trainer: Trainer
    reading: Reading
    default: Kept
    best: Kept
    read_by_default: np.ndarray
    read_at_best: np.ndarray
    lines: str


def replay(export: Shape, trainer: Trainer, untransposed: Shape | None = None, **asked: int | None) -> Replay:
    """Replay a trainer's sampler over an export, as it comes over `untransposed` where its rows lie otherwise; asked:
    see `Shape.reading`.

    Raises:
        InputError: see `Shape.reading`.
    """
    reading = export.reading(**asked)
    total = export.sequences * export.epochs
    plan = np.append(np.arange(total), np.full(-total % export.batch, -1)).reshape(-1, export.batch)
    default = _read(trainer.default, untransposed or export, asked)
    best = _read(trainer.best, export, asked)
    return Replay(
        trainer=trainer,
        reading=reading,
        default=compare(default, plan),
        best=compare(best, plan),
        read_by_default=default,
        read_at_best=best,
        lines=trainer.configuration(
            reading, path=export.path, prefix=export.prefix, sequence_length=export.sequence_length
        ),
    )


def _read(way: Callable[[Reading], np.ndarray], shape: Shape, asked: Mapping[str, int | None]) -> np.ndarray:
    """The positions that a way of reading reads, int64 (batches, B)."""
    rows = way(shape.reading(**asked))
    return np.where(rows < 0, -1, shape.positions()[rows])
