"""Packing after a beginning that a trainer has consumed: what is left of the documents, and the two plans as one."""

from __future__ import annotations

import numpy as np

from dagster_divorder.core.packing.pieces import PackedSequences, Pieces


def remaining(pieces: Pieces, consumed: PackedSequences) -> Pieces:
    """The tokens of the pieces that lie in no consumed sequence, in the order of the pieces, those of one by start.

    pieces: whole documents, each once, from token 0. consumed: runs inside them that do not overlap. Between two runs
    of a document, before its first and after its last, a piece remains if there are tokens; so does a document without
    tokens. O((P + Q) log (P + Q)).
    """
    place = np.full(pieces.document.max(initial=-1) + 1, -1, np.int64)
    place[pieces.document] = np.arange(len(pieces))
    at = place[consumed.document]
    order = np.lexsort((consumed.start, at))
    at, start, end = at[order], consumed.start[order], (consumed.start + consumed.length)[order]
    # A piece of what remains begins at token 0 and at each run's end; it ends at the next run or the document's end.
    runs = np.bincount(at, minlength=len(pieces))
    first = np.cumsum(runs + 1) - (runs + 1)
    after = np.arange(len(at)) + at + 1
    begin = np.zeros(len(pieces) + len(at), np.int64)
    begin[after] = end
    until = np.empty_like(begin)
    until[after - 1] = start
    until[first + runs] = pieces.length
    of = np.repeat(np.arange(len(pieces)), runs + 1)
    kept = (until > begin) | (pieces.length[of] == 0)
    return Pieces(pieces.document[of[kept]], begin[kept], (until - begin)[kept])


def join(first: PackedSequences, second: PackedSequences) -> PackedSequences:
    """The sequences of `first`, then those of `second`."""
    return PackedSequences(
        document=np.concatenate([first.document, second.document]),
        start=np.concatenate([first.start, second.start]),
        length=np.concatenate([first.length, second.length]),
        indptr=np.concatenate([first.indptr, first.indptr[-1] + second.indptr[1:]]),
        sequence_length=second.sequence_length,
        without_tokens=second.without_tokens,
        parts=second.parts + len(first),
    )
