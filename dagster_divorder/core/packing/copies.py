"""Copies in packed sequences: times that keep them apart in the training stream, and their distances.

Letters: S sequences, Q runs, L tokens a sequence, N documents, E epochs, r copies of one text.

Packing with copies (`packing.parts`), or an order that spreads copies, gives a plan with evenly spaced copies. So the
time of a sequence that holds a text with copies is its place in the plan; all other sequences are free. Two kinds of
sequences get other times:

- The sequences of a text whose many copies keep their places are spread evenly over the epoch.
- The sequences of a long document are neighbours in the plan, and too many for one batch. Sequences that hold nothing
  else are delayed, each by up to one STEPS-th of the even distance more than the one before it, towards the middle.
  Equal parts of two copies stay nearly the even distance apart.

Distance in the plan beyond NEAREST of the even distance is slack. A sequence may leave its time by half of the slack,
towards cells that lack its content (`core.order.spread`).
Guarantee: equal tokens keep at least NEAREST of their even distance, within and across epochs, if they do so in the
plan; otherwise they keep the plan's times. Exceptions: the few sequences by which cells differ in size, and later
epochs after frozen sequences.
Cost: O(Q log Q), and r operations for each distinct first token of the runs of a text with r copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.order.spread import Times, cell_number, keep_times
from dagster_divorder.core.packing.parts import CELLS_APART, MIN_PART
from dagster_divorder.core.packing.pieces import Ints, PackedSequences

NEAREST = 0.5
"""Least part of the even distance that copies keep. With more, windows keep their mix less well."""

STEPS = 16
"""Sequences of a long document within the even distance. With 4, copies that were cut at different tokens lose a
quarter of their distance."""


def sequence_times(
    packed: PackedSequences, texts: Ints, *, frozen: int = 0, as_packed: bool = False
) -> Times:
    """Times of the sequences for `core.order.spread`.

    texts: int64 (N,), equal for documents of equal text. frozen: number of first sequences that are consumed.
    as_packed: the time of every sequence is its place in the plan.
    """
    sequences, consumed_runs = len(packed), packed.indptr[frozen]
    sequence = np.arange(sequences).repeat(np.diff(packed.indptr))
    text = texts[packed.document]
    # The consumed part of a text counts as one copy, however much of it remains.
    consumed = np.zeros(texts.max(initial=-1) + 1, bool)
    consumed[text[:consumed_runs]] = True
    copies = (_copies(packed.document[consumed_runs:], texts) + consumed)[text]
    copies[:consumed_runs] = 1
    most = np.ones(sequences, np.int64)
    np.maximum.at(most, sequence, copies)

    cells, bounds = len(packed.parts) + 1, np.concatenate([[frozen], packed.parts, [sequences]])
    if cells == 1:
        cells = cell_number(sequences - frozen, most, smallest=MIN_PART, apart=CELLS_APART)
        bounds = np.linspace(frozen, sequences, cells + 1)
    place = np.interp(np.arange(sequences) + 0.5, bounds, np.arange(cells + 1) / cells)
    if as_packed:
        return Times(place, most, cells, exact=True)
    times = np.where(most > 1, place, np.nan)

    # A text that keeps its places has evenly spread sequences if all its copies are cut alike.
    keeps_time = keep_times(sequences - frozen, most, cells)[sequence] & (copies == most[sequence])
    run = np.flatnonzero(keeps_time)
    run = run[np.lexsort((sequence[run], packed.start[run], text[run]))]
    even, size = _evenly(place[sequence[run]], text[run], packed.start[run])
    cut_alike = size == copies[run]
    times[sequence[run][cut_alike]] = even[cut_alike]

    alone = (np.diff(packed.indptr) == 1)[sequence]
    run = np.flatnonzero(alone & (copies > 1) & ~consumed[text])
    times[sequence[run]] += _delays(packed, run, copies[run])
    # Twice: the first modulo turns a rounding error below 0 into 1.0; the second turns this into 0.
    times = times % 1.0 % 1.0
    epoch_length = sequences / max(1, sequences - frozen)
    times[:frozen] = (np.arange(frozen) + 0.5 - frozen) / max(1, sequences - frozen)
    return Times(times, most, cells, room=_room(packed, texts, times, epoch_length))


def _delays(packed: PackedSequences, run: Ints, copies: Ints) -> NDArray[np.float64]:
    """Delays of sequences that each hold one run of a long document, rising towards its middle, float64 (n,), by run.

    copies: int64 (n,), the copies of each run's text.
    """
    tokens = np.bincount(packed.document, weights=packed.length)[packed.document[run]]
    progress = packed.start[run] / tokens
    furthest = np.minimum(tokens / (STEPS * copies * packed.sequence_length), 1.0)
    return furthest * np.minimum(progress, 1.0 - progress)


def _room(
    packed: PackedSequences, texts: Ints, times: NDArray[np.float64], epoch_length: float
) -> NDArray[np.float64]:
    """Earliest and latest time of each sequence, float64 (S, 2) in [0, 1].

    epoch_length: in the unit of the times. Frozen sequences have times below 0.
    """
    sequence = np.arange(len(packed)).repeat(np.diff(packed.indptr))
    run = np.flatnonzero(_copies(packed.document, texts)[texts[packed.document]] > 1)
    run = run[np.lexsort((packed.start[run], packed.document[run]))]
    document, start, end = packed.document[run], packed.start[run], (packed.start + packed.length)[run]
    # For the first token of each run, find the runs that hold it in all copies of the document.
    span = int(end.max(initial=0)) + 1
    tokens_looked_up = distinct_values(texts[document] * span + start)
    documents_with_copies = distinct_values(document)
    documents_with_copies = documents_with_copies[np.argsort(texts[documents_with_copies], kind="stable")]
    begins, ends = (
        np.searchsorted(texts[documents_with_copies], tokens_looked_up // span, side=side)
        for side in ("left", "right")
    )
    token_looked_up = np.arange(len(tokens_looked_up)).repeat(ends - begins)
    nth = np.arange(len(token_looked_up)) - (np.cumsum(ends - begins) - ends).repeat(ends - begins)
    token = tokens_looked_up[token_looked_up] % span
    holder = (
        np.searchsorted(document * span + start, documents_with_copies[nth] * span + token, side="right") - 1
    )
    holds = (document[holder] == documents_with_copies[nth]) & (end[holder] > token)
    token_looked_up, sequence_there = token_looked_up[holds], sequence[run[holder[holds]]]
    by_time = np.lexsort((times[sequence_there], token_looked_up))
    token_looked_up, sequence_there = token_looked_up[by_time], sequence_there[by_time]
    first = np.flatnonzero(np.diff(token_looked_up, prepend=-1))
    copies = np.diff(np.append(first, len(token_looked_up)))
    last, next_ = first + copies - 1, np.arange(1, len(token_looked_up) + 1)
    next_[last] = first
    gap = times[sequence_there[next_]] - times[sequence_there]
    gap[last] += epoch_length
    room = 0.5 * np.maximum(gap - NEAREST * epoch_length / copies.repeat(copies), 0.0)
    before, after = (np.full(len(packed), np.inf) for _ in range(2))
    np.minimum.at(after, sequence_there, room)
    np.minimum.at(before, sequence_there[next_], room)
    free = np.isnan(times)
    return np.stack(
        [
            np.where(free, 0.0, np.maximum(times - before, 0.0)),
            np.where(free, 1.0, np.minimum(times + after, 1.0)),
        ],
        axis=1,
    )


def _evenly(times: NDArray[np.float64], text: Ints, start: Ints) -> tuple[NDArray[np.float64], Ints]:
    """(even times, float64 (n,); number of runs that share them) of runs sorted by text, start and time."""
    again = (np.diff(text, prepend=-1) == 0) & (np.diff(start, prepend=-1) == 0)
    first = np.flatnonzero(~again)
    sizes = np.diff(np.append(first, len(times)))
    size, number = sizes.repeat(sizes), np.arange(len(times)) - first.repeat(sizes)
    phase = np.bincount(np.cumsum(~again) - 1, weights=times * size - number, minlength=len(first)) / sizes
    return (number + phase.repeat(sizes)) / size, size


def _copies(document: Ints, texts: Ints) -> Ints:
    """Number of documents with each text, int64 (texts,)."""
    present = np.flatnonzero(np.bincount(document))
    return np.bincount(texts[present], minlength=texts.max(initial=-1) + 1)


@dataclass(frozen=True)
class SequenceSpacing:
    """Distances, in sequences, between successive copies of a token over consecutive epochs.

    copies: documents that repeat another's text. together: successive copies in one sequence. smallest, median:
    distances; None without copies. smallest_share, median_share: relative to the even distance, S / r for a text with r
    copies.
    """

    copies: int
    together: int
    smallest: int | None
    median: float | None
    smallest_share: float | None
    median_share: float | None


def sequence_spacing(
    packed: PackedSequences, epochs: ArrayLike, texts: Ints, *, step: int | None = None
) -> SequenceSpacing:
    """Distances of copies if sequences are read in the orders `epochs`, int (E, S); each is read E times in all.

    texts: int64 (N,), equal for documents of equal text. step: the tokens 0, step, 2 step, ... of every text are
    measured; by default a sequence length apart.
    """
    orders = np.atleast_2d(np.asarray(epochs, np.int64))
    step = step or packed.sequence_length
    copies = _copies(packed.document, texts)
    run = np.flatnonzero(copies[texts[packed.document]] > 1)
    first = -(-packed.start[run] // step)
    tokens = np.maximum(-(-(packed.start[run] + packed.length[run]) // step) - first, 0)
    repeated = int(copies[copies > 1].sum() - (copies > 1).sum())
    if not tokens.sum():
        return SequenceSpacing(repeated, 0, None, None, None, None)
    token = first.repeat(tokens) + np.arange(tokens.sum()) - (np.cumsum(tokens) - tokens).repeat(tokens)
    text = texts[packed.document[run]].repeat(tokens)
    sequence = (np.searchsorted(packed.indptr, run, side="right") - 1).repeat(tokens)
    # A row may name a sequence twice and another never, if all rows together name each E times.
    places = np.argsort(orders, axis=None, kind="stable").reshape(len(packed), -1).T[:, sequence]
    text, token, places = np.tile(text, len(orders)), np.tile(token, len(orders)), places.ravel()
    by_token = np.lexsort((places, token, text))
    text, token, places = text[by_token], token[by_token], places[by_token]
    again = np.flatnonzero((text[1:] == text[:-1]) & (token[1:] == token[:-1]))
    distance = places[again + 1] - places[again]
    share = distance * copies[text[again]] / len(packed)
    return SequenceSpacing(
        copies=repeated,
        together=int((distance == 0).sum()),
        smallest=int(distance.min()),
        median=float(np.median(distance)),
        smallest_share=float(share.min()),
        median_share=float(np.median(share)),
    )
