"""Makes the sections of training (`core.order.sections`): what stays of the last plan is given, everything unread is
dealt to sections by phases of the mix, windows of a score, copies that stand apart, and
SECTION_RECORDS.

A *stretch* is consecutive sections of one asked mix; orders are measured by stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from dagster_divorder.core.distinct import copy_number
from dagster_divorder.core.order.schedule import windows_of
from dagster_divorder.core.order.sections import FEWEST_SEQUENCES, equal_parts, spans_of_values
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.ids import find_records
from dagster_divorder.stages.mix.repeats import TrainingStream, load_plan, stream_size
from dagster_divorder.stages.order.frozen import Frozen
from dagster_divorder.stages.order.scores import stream_ranks

Part = TypeVar("Part")
Result = TypeVar("Result")

SECTION_RECORDS = 10_000_000
"""Most records ordered together; a larger corpus is dealt to equal parts with its mix."""

WORKER_RECORDS = 200_000
"""Least records per process: fewer are ordered in less time than a process takes to start."""

RECORD_BYTES = 300
"""Bytes of memory that ordering takes per record."""

FEWEST_BATCHES = 4
"""A section that only memory or copies ask for has at least so many batches, and FEWEST_SEQUENCES."""


class Sections(NamedTuple):
    """items: int64 (R,), the items of the stream that are left to pack, section by section. traits: of what is unread
    of them. bounds: int64 (K + 1,), where sections begin and end in `items`. stretch: int64 (K,), rising. left_out:
    records of which a rest stays unread, because their values have no more share."""

    items: np.ndarray
    traits: Traits
    bounds: np.ndarray
    stretch: np.ndarray
    left_out: int


def make_sections(run: Run, stream: TrainingStream, frozen: Frozen | None) -> Sections:
    """The sections of what is unread.

    Raises:
        InputError: there would be too many sections.
    """
    settings, traits = run.settings, stream.traits
    items, rest = np.arange(len(traits.tokens)), np.zeros(len(traits.tokens), bool)
    if frozen:
        items, traits, rest = _unread(run, stream, frozen)
    span = _spans(run, stream, frozen, items, traits, rest)
    if left_out := int((span < 0).sum()):
        kept = np.flatnonzero(span >= 0)
        items, traits, span = items[kept], traits.take(kept), span[kept]
    copies = run.copies[stream.record_of[items]] if keeps_copies_apart(settings) else None
    part = np.zeros(len(items), np.int64)
    if settings.strategy(settings.order.strategy).sees_traits:
        for number in np.unique(span):
            inside = np.flatnonzero(span == number)
            part[inside] = equal_parts(
                traits.take(inside),
                settings.order.traits,
                most=SECTION_RECORDS,
                least=max(FEWEST_BATCHES * settings.sequence.batch, FEWEST_SEQUENCES)
                * settings.sequence.length,
                copies=None if copies is None else copies[inside],
                steady=not settings.order.separate_copies,
                seed=settings.seed,
            )
    if span.any() or part.any():
        in_order = np.lexsort((part, span))
        items, traits = items[in_order], traits.take(in_order)
        span, part = span[in_order], part[in_order]
    begins = np.flatnonzero((np.diff(span, prepend=-1) != 0) | (np.diff(part, prepend=-1) != 0))
    if not len(items):
        begins, span = np.zeros(1, np.int64), np.zeros(1, np.int64)
    return Sections(items, traits, np.append(begins, len(items)), span[begins], left_out)


def keeps_copies_apart(settings: Settings) -> bool:
    """Whether copies go to different sections: `cluster_packed` would put them side by side."""
    return settings.copies_apart or settings.packing.method == "cluster_packed"


def _unread(run: Run, stream: TrainingStream, frozen: Frozen) -> tuple[np.ndarray, Traits, np.ndarray]:
    """(items with unread tokens, or without tokens and not read; the traits of what is unread of them; whether an item
    is partly read)."""
    traits, end = stream.traits, run.settings.packing.end_of_text
    read = np.bincount(frozen.sequences.document, frozen.sequences.length, len(traits.tokens)).astype(
        np.int64
    )
    lengths = traits.tokens + end
    unread = (read < lengths) | ((lengths == 0) & ~np.isin(np.arange(len(lengths)), frozen.documents))
    if run.settings.repeats:
        # Of what is not read at all, only as many copies as the mix has room for.
        new = np.flatnonzero(unread & (read == 0))
        record = stream.record_of[new]
        begun = np.bincount(stream.record_of[read > 0], minlength=len(run.view))
        unread[new[begun[record] + copy_number(record) >= load_plan(run)["packed"][record]]] = False
    if run.settings.order.cut:
        unread[stream.items(find_records(run, run.settings.order.cut))] = False
    items = np.flatnonzero(unread)
    left = (lengths - read)[items]
    of_items = traits.take(items)
    tokens = np.minimum(left, of_items.tokens)
    counted = np.rint(of_items.counted * (tokens / np.maximum(of_items.tokens, 1))).astype(np.int64)
    return items, replace(of_items, tokens=tokens, counted=counted), read[items] > 0


def _spans(
    run: Run,
    stream: TrainingStream,
    frozen: Frozen | None,
    items: np.ndarray,
    traits: Traits,
    rest: np.ndarray,
) -> np.ndarray:
    """The span of each item, int64 (R,), -1 for rests that stay unread."""
    settings, seed = run.settings, run.settings.seed
    if settings.curriculum.on:
        ranks = stream_ranks(run, stream)[items]
        begin = int(frozen.sequences.length.sum()) if frozen else 0
        # One schedule may span several epochs.
        total = int(traits.tokens.sum()) + begin
        window = settings.window(total)
        return windows_of(
            ranks, traits.tokens, settings.curriculum.pieces, window, begin=begin / max(1, total), seed=seed
        )
    if not settings.mixing.on:
        return np.zeros(len(items), np.int64)
    number = copy_number(stream.record_of)[items]
    return spans_of_values(
        traits,
        settings.order.traits,
        traits.codes[settings.mixed_trait],
        np.where(rest, -1, number),
        load_plan(run)["quotas"],
        seed=seed,
    )


@dataclass(frozen=True)
class _Parts(Sequence[Part]):
    """A sequence of `number` parts; each is made when it is accessed."""

    number: int
    make: Callable[[int], Part]

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, at: int) -> Part:  # type: ignore[override]
        if at >= self.number:
            raise IndexError(at)
        return self.make(at)


def each_section(
    run: Run, function: Callable[[Part], Result], number: int, make: Callable[[int], Part]
) -> Iterator[Result]:
    """`function(make(section))` for each of `number` sections, in order, in processes if the stream is large. A part
    is made only when a process is ready for it. Function, parts and results must be picklable."""
    records = stream_size(run)
    results = run.engine.each(
        function,
        _Parts(number, make),
        workers=records // WORKER_RECORDS,
        memory=RECORD_BYTES * (records // max(1, number)),
    )
    return counted(run.progress, "ordering", results, number, "sections") if number > 1 else results
