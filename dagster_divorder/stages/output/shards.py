"""Shards: equal parts of a corpus that is too large to be ordered as a whole; each is ordered separately, in a process.

A plain function of its arrays orders a shard. The arrays are cut out of the corpus's arrays only when a process is
ready for them, and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from dagster_divorder.core.order.deal import MOST_SHARDS
from dagster_divorder.engine.progress import counted
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.mix.repeats import stream_size

Part = TypeVar("Part")
Result = TypeVar("Result")

WORKER_RECORDS = 200_000
"""Least records per process: fewer are ordered in less time than a process takes to start."""

RECORD_BYTES = 300
"""Bytes of memory that ordering takes per record."""


def shard_number(run: Run) -> int:
    """The number of shards of the stream: 1 if it has at most `order.shards_of` items, or the strategy of the documents
    uses no traits.

    Raises:
        InputError: there would be too many shards, or several with `order.targets`, which they could not follow.
    """
    settings, records = run.settings, stream_size(run)
    if not settings.strategy(settings.order.strategy).sees_traits:
        return 1
    shards = max(1, -(-records // settings.order.shards_of))
    if shards > MOST_SHARDS:
        raise InputError(
            f"order.shards_of = {settings.order.shards_of:,} makes {shards:,} shards of {records:,} records; expected "
            f"at most {MOST_SHARDS:,} shards: set it to {-(-records // MOST_SHARDS):,} or more"
        )
    if shards > 1 and settings.order.targets:
        raise InputError(
            f"order.targets moves {', '.join(settings.order.targets)}, and order.shards_of = "
            f"{settings.order.shards_of:,} makes {shards} shards of {records:,} records, all of one mix; expected no "
            f"targets, or one shard: set order.shards_of to {records:,} or more"
        )
    if shards > 1 and settings.curriculum.on:
        raise InputError(
            f"curriculum.score is {settings.curriculum.score!r}, and order.shards_of = {settings.order.shards_of:,} "
            f"makes {shards} shards of {records:,} records, all of one mix; expected one shard: set order.shards_of to "
            f"{records:,} or more"
        )
    return shards


@dataclass(frozen=True)
class Parts(Sequence[Part], Generic[Part]):
    """A sequence of `number` parts; each is made when it is accessed."""

    number: int
    make: Callable[[int], Part]

    def __len__(self) -> int:
        return self.number

    @overload
    def __getitem__(self, at: int) -> Part: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Part]: ...
    def __getitem__(self, at: int | slice) -> Part | Sequence[Part]:
        if isinstance(at, slice):
            return [self.make(part) for part in range(*at.indices(self.number))]
        if not 0 <= at < self.number:
            raise IndexError(at)
        return self.make(at)


def each_shard(run: Run, function: Callable[[Part], Result], parts: Parts[Part]) -> Iterator[Result]:
    """`function(part)` for the part of every shard, in order. Function, parts and results must be picklable."""
    records = stream_size(run)
    results = run.engine.each(
        function, parts, workers=records // WORKER_RECORDS, memory=RECORD_BYTES * (records // len(parts))
    )
    return counted(run.progress, "ordering", results, len(parts), "shards") if len(parts) > 1 else results
