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
    begins = np.sort(consumed.document * width + consumed.start)
    ends = np.sort(consumed.document * width + consumed.start + consumed.length)
    line = width * (int(pieces.document.max(initial=0)) + 1)
    first, last = np.append(0, ends), np.append(begins, max(line, ends.max(initial=0)))
    gaps = Spans(first[first < last], last[first < last])
    full = np.flatnonzero(pieces.length)
    at, start, end = gaps.cut((pieces.document * width + pieces.start)[full], pieces.length[full])
    # Pieces without tokens remain.
    piece = np.concatenate([full[at], np.flatnonzero(pieces.length == 0)])
    start, end = (np.append(of, np.zeros(len(piece) - len(at), np.int64)) for of in (start, end))
    order = np.argsort(piece, kind="stable")
    piece, start, end = piece[order], start[order], end[order]
    return Pieces(pieces.document[piece], pieces.start[piece] + start, end - start)


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
