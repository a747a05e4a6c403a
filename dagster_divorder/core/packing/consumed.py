"""Packing after consumed sequences: the remaining pieces, and the concatenation of plans."""

from __future__ import annotations

import numpy as np

from dagster_divorder.core.packing.pieces import PackedSequences, Pieces


def remaining(pieces: Pieces, consumed: PackedSequences) -> Pieces:
    """The tokens outside consumed sequences, as pieces in the order of the documents, then by start.

    pieces: whole documents, each once, from token 0. consumed: runs inside them that do not overlap. A piece remains
    before, between and after the runs of a document wherever there are tokens; empty documents remain.
    O((P + Q) log (P + Q)).
    """
    place = np.full(pieces.document.max(initial=-1) + 1, -1, np.int64)
    place[pieces.document] = np.arange(len(pieces))
    at = place[consumed.document]
    order = np.lexsort((consumed.start, at))
    at, start, end = at[order], consumed.start[order], (consumed.start + consumed.length)[order]
    # Remaining pieces begin at token 0 and at the end of each run; they end at the next run or the document's end.
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
    return Pieces(pieces.document[piece[kept]], begin[kept], (until - begin)[kept])


def join(*plans: PackedSequences) -> PackedSequences:
    """The sequences of the plans, one plan after another."""
    if len(plans) == 1:
        return plans[0]
    runs = np.cumsum([0, *(plan.indptr[-1] for plan in plans)])
    sequences = np.cumsum([0, *(len(plan) for plan in plans)])
    return PackedSequences(
        document=np.concatenate([plan.document for plan in plans]),
        start=np.concatenate([plan.start for plan in plans]),
        length=np.concatenate([plan.length for plan in plans]),
        indptr=np.concatenate(
            [[0], *(plan.indptr[1:] + before for plan, before in zip(plans, runs, strict=False))]
        ),
        sequence_length=plans[-1].sequence_length,
        without_tokens=sum(plan.without_tokens for plan in plans),
        parts=np.concatenate([plan.parts + before for plan, before in zip(plans, sequences, strict=False)]),
    )
