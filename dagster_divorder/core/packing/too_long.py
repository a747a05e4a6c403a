"""Which parts of documents longer than a sequence are packed, by rule.

Letters: P documents, K breaks, L tokens a sequence.

cut: all tokens; packing cuts them. truncate: the first L tokens. drop: none. split_turns: pieces of at most L tokens
that end at breaks or at the end, each as long as possible; if two breaks are more than L tokens apart, the first L
tokens between them. Plain documents are cut.
Guarantee: documents of at most L tokens stay whole; the pieces of a document are disjoint and rise.
Cost: O(P) time and memory; split_turns O((P + K) log K) for each piece of the document with the most.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.packing.pieces import Ints, Pieces

Rule = Literal["cut", "truncate", "drop", "split_turns"]


class Breaks(NamedTuple):
    """plain: bool (P,), documents that may be cut anywhere. Others may be cut at breaks: document int64 (K,), its place
    among the P; position int64 (K,), the tokens before the break."""

    plain: NDArray[np.bool_]
    document: Ints
    position: Ints


def fit(documents: Pieces, rule: Rule, sequence_length: int, breaks: Breaks | None = None) -> Pieces:
    """The pieces of whole documents that are packed, in the documents' order. breaks: for split_turns."""
    if rule == "truncate":
        length = np.minimum(documents.length, sequence_length)
        return Pieces(documents.document, documents.start, length)
    if rule == "drop":
        return documents.take(documents.length <= sequence_length)
    return documents if rule == "cut" or breaks is None else _split(documents, sequence_length, breaks)


def _split(documents: Pieces, sequence_length: int, breaks: Breaks) -> Pieces:
    # Documents are laid end to end, so that one search serves all of them.
    begins = np.cumsum(documents.length) - documents.length
    ends = begins + documents.length
    line = np.union1d(begins[breaks.document] + breaks.position, ends)
    piece = np.flatnonzero(~breaks.plain & (documents.length > sequence_length))
    whole = np.setdiff1d(np.arange(len(documents)), piece)
    found = [(whole, begins[whole], documents.length[whole])]
    start = begins[piece]
    while len(piece):
        last = np.searchsorted(line, start + sequence_length, side="right") - 1
        next_ = np.searchsorted(line, start, side="right")
        too_far = last < next_
        stop = np.where(too_far, start + sequence_length, np.minimum(line[last], ends[piece]))
        found.append((piece, start, stop - start))
        start = np.where(too_far, line[next_], stop)
        goes_on = start < ends[piece]
        piece, start = piece[goes_on], start[goes_on]
    piece, start, length = (np.concatenate(column) for column in zip(*found, strict=True))
    in_order = np.lexsort((start, piece))
    piece, start, length = piece[in_order], start[in_order], length[in_order]
    return Pieces(documents.document[piece], documents.start[piece] + start - begins[piece], length)
