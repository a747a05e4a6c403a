"""Packing after consumed sequences: the remaining pieces, and the concatenation of plans."""

from __future__ import annotations

import numpy as np

from dagster_divorder.core.packing.pieces import PackedSequences, Pieces
from dagster_divorder.core.spans import Spans


def remaining(pieces: Pieces, consumed: PackedSequences | Pieces) -> Pieces:
    """The tokens of pieces outside consumed runs, in the order of the pieces, then by start.

    pieces, consumed: disjoint runs of tokens each. What remains of a piece lies before, between and after the runs
    inside it, wherever there are tokens. Empty pieces remain. O((P + Q) log (P + Q)).
    """
    # Documents laid side by side, a width apart, form one line.
    width = max(int((runs.start + runs.length).max(initial=0)) for runs in (pieces, consumed)) + 1
    begins = consumed.document * width + consumed.start
    order = np.argsort(begins)
    spans = Spans(begins[order], (begins + consumed.length)[order])
    at, start, end = spans.cut(pieces.document * width + pieces.start, pieces.length)
    # Remaining pieces begin where a piece begins and at the end of each run; they end at the next run or at the piece's
    # end.
    runs = np.bincount(at, minlength=len(pieces))
    first = np.cumsum(runs + 1) - (runs + 1)
    after = np.arange(len(at)) + at + 1
    begin = np.zeros(len(pieces) + len(at), np.int64)
    begin[after] = end
    until = np.empty_like(begin)
    until[after - 1] = start
    until[first + runs] = pieces.length
    piece = np.repeat(np.arange(len(pieces)), runs + 1)
    kept = (until > begin) | (pieces.length[piece] == 0)
    piece, begin, until = piece[kept], begin[kept], until[kept]
    return Pieces(pieces.document[piece], pieces.start[piece] + begin, until - begin)


def join(*plans: PackedSequences) -> PackedSequences:
    """The sequences of the plans, one plan after another."""
    if len(plans) == 1:
        return plans[0]
    runs = np.cumsum([0, *(plan.indptr[-1] for plan in plans)])
    return PackedSequences(
        document=np.concatenate([plan.document for plan in plans]),
        start=np.concatenate([plan.start for plan in plans]),
        length=np.concatenate([plan.length for plan in plans]),
        indptr=np.concatenate(
            [[0], *(plan.indptr[1:] + before for plan, before in zip(plans, runs, strict=False))]
        ),
        sequence_length=plans[-1].sequence_length,
        without_tokens=sum(plan.without_tokens for plan in plans),
    )
