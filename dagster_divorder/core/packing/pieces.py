"""Input and output of packing: pieces of documents, and a plan of the runs in each sequence.

Letters: P pieces, Q runs, S sequences, L tokens a sequence. Plans refer to tokens and never hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.rows import row_entries
from dagster_divorder.core.spans import Spans

Ints = NDArray[np.int64]
Vectors = Callable[[Ints], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Runs of tokens to pack, in order: piece p is the tokens [start[p], start[p] + length[p]) of a document.

    document, start, length: int64 (P,), >= 0. Usually whole documents; the rest of a partly consumed document starts
    above 0. A document may occur more than once.
    """

    document: Ints
    start: Ints
    length: Ints

    def __len__(self) -> int:
        """P."""
        return len(self.document)

    def take(self, pieces: NDArray[np.integer] | NDArray[np.bool_] | slice) -> Pieces:
        """The pieces at an index, mask or slice."""
        return Pieces(self.document[pieces], self.start[pieces], self.length[pieces])

    def followed_by(self, other: Pieces) -> Pieces:
        """These pieces, then others."""
        if not len(self):
            return other
        columns = (
            (getattr(runs, name) for runs in (self, other)) for name in ("document", "start", "length")
        )
        return Pieces(*(np.concatenate([*column]) for column in columns))


@dataclass(frozen=True, eq=False, kw_only=True)
class PackingProblem:
    """The input of every method. pieces: at least one token each; sequence_length >= 1; seed >= 0.

    labels: int (P,), the cluster of each piece. vectors: returns float32 (n, D) for n pieces. Both are None if the
    method does not use content. copies: int64 (P,), equal for equal pieces; None without copies.
    """

    pieces: Pieces
    sequence_length: int
    seed: int
    labels: NDArray[np.integer] | None
    vectors: Vectors | None
    copies: Ints | None


@dataclass(frozen=True, eq=False)
class PackedSequences:
    """Sequence s holds the runs indptr[s]:indptr[s+1], one after another from its first token.

    document, start, length: int64 (Q,): a run is the tokens [start, start + length) of a document, length > 0.
    indptr: int64 (S+1,). Padding fills the end of each sequence up to `sequence_length` tokens. without_tokens: number
    of empty pieces, which are in no sequence.
    """

    document: Ints
    start: Ints
    length: Ints
    indptr: Ints
    sequence_length: int
    without_tokens: int = 0

    def __len__(self) -> int:
        """S."""
        return len(self.indptr) - 1

    @property
    def tokens(self) -> Ints:
        """Tokens of each sequence, without padding, int64 (S,)."""
        before = np.concatenate([[0], np.cumsum(self.length)])
        return np.diff(before[self.indptr])

    @property
    def padding(self) -> Ints:
        """Tokens that each sequence lacks to full length, int64 (S,)."""
        return self.sequence_length - self.tokens

    def take(self, sequences: Ints) -> PackedSequences:
        """Some sequences, in this order, repeats allowed."""
        runs, indptr = row_entries(self.indptr, sequences)
        document, start, length = (each[runs] for each in (self.document, self.start, self.length))
        return replace(self, document=document, start=start, length=length, indptr=indptr)

    def part(self, begin: int, end: int) -> PackedSequences:
        """The sequences [begin, end)."""
        runs = slice(self.indptr[begin], self.indptr[end])
        return PackedSequences(
            document=self.document[runs],
            start=self.start[runs],
            length=self.length[runs],
            indptr=self.indptr[begin : end + 1] - self.indptr[begin],
            sequence_length=self.sequence_length,
        )


def cut(pieces: Pieces, piece_tokens: int) -> Pieces:
    """The pieces; longer ones are cut into pieces of `piece_tokens` tokens, 1 or more, and a shorter last one."""
    parts = np.maximum(-(-pieces.length // piece_tokens), 1)
    piece = np.arange(len(pieces)).repeat(parts)
    before = (np.arange(len(piece)) - (np.cumsum(parts) - parts).repeat(parts)) * piece_tokens
    return Pieces(
        pieces.document[piece],
        pieces.start[piece] + before,
        np.minimum(piece_tokens, pieces.length[piece] - before),
    )


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
    return PackedSequences(
        document=np.concatenate([plan.document for plan in plans]),
        start=np.concatenate([plan.start for plan in plans]),
        length=np.concatenate([plan.length for plan in plans]),
        indptr=np.cumsum(np.concatenate([[0], *(np.diff(plan.indptr) for plan in plans)])),
        sequence_length=plans[-1].sequence_length,
        without_tokens=sum(plan.without_tokens for plan in plans),
    )
