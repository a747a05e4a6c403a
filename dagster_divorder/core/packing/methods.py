"""Packing methods that look at lengths alone. Letters: P pieces, S sequences, L tokens a sequence."""

import numpy as np

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.packing.pieces import PackedSequences, PackingProblem, cut


def concat(problem: PackingProblem) -> PackedSequences:
    """Pieces end to end in their order, cut at every L tokens, as in most pretraining packers since GPT-3.

    Only the last sequence has padding. Documents are cut (a third of them at a mean length of half a sequence), and a
    second part is read without its beginning (Ding et al. 2024). O((P + S) log (P + S)) time.
    """
    pieces, size = problem.pieces, problem.sequence_length
    ends = np.cumsum(pieces.length)
    total = int(ends[-1]) if len(ends) else 0
    # Runs of the pieces laid end to end begin where a piece or a sequence does.
    sequences = np.arange(0, total, size)
    begins = distinct_values(np.concatenate([ends - pieces.length, sequences]))
    piece = np.searchsorted(ends, begins, side="right")
    return PackedSequences(
        document=pieces.document[piece],
        start=pieces.start[piece] + begins - (ends - pieces.length)[piece],
        length=np.diff(begins, append=total),
        indptr=np.append(np.searchsorted(begins, sequences), len(begins)),
        sequence_length=size,
    )


def none(problem: PackingProblem) -> PackedSequences:
    """A sequence holds one piece, as in trainers that do not pack records; longer pieces are cut into sequences of L
    tokens. The sequences have the order of the pieces."""
    runs = cut(problem.pieces, problem.sequence_length)
    return PackedSequences(
        runs.document, runs.start, runs.length, np.arange(len(runs) + 1), problem.sequence_length
    )


def best_fit(problem: PackingProblem) -> PackedSequences:
    """Each piece goes into the sequence with the least sufficient room; only pieces longer than L are cut, into runs of
    L tokens and a remainder that is packed like any other piece. No sequence holds two copies of a piece.

    Pieces of more than half a sequence are packed first, then the others, both in the order of the documents, so that a
    sequence holds their mix: the longest first, as in "Fewer Truncations Improve Language Modeling" (Ding et al. 2024)
    and OLMo-core, fills sequences with pieces of one length, often alike. The sequences are then shuffled, since full
    ones come first. There are at most 17/10 of the fewest possible sequences (Dosa and Sgall 2014), on real corpora a
    few in a thousand more than the fewest. O(P log L) time, O(P + L) memory. Measurements: docs/decisions/packing.md.
    """
    from dagster_divorder.core.kernels import packing as kernels

    length = problem.sequence_length
    runs = cut(problem.pieces, length)
    cuts = -(-problem.pieces.length // length)
    copy = np.arange(len(problem.pieces)) if problem.copies is None else problem.copies
    several = np.bincount(copy)[copy].repeat(cuts) > 1
    copy = copy.repeat(cuts)
    # Equal content has equal lengths, but for the rest of a document that is partly read.
    full = runs.length == length
    longest = np.zeros(copy.max(initial=-1) + 1, np.int64)
    np.maximum.at(longest, copy[~full], runs.length[~full])
    small = 2 * np.where(several & ~full, longest[copy], runs.length) <= length
    # Copies come first, those of one text together, because they need room in many sequences.
    turns = np.lexsort((np.where(several, copy, 0), small, ~several))
    sequence, opened = kernels.best_fit(runs.length, turns, copy, length)
    position = np.random.default_rng(problem.seed).permutation(opened)[sequence]
    placed = runs.take(np.argsort(position, kind="stable"))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(position, minlength=opened))])
    return PackedSequences(placed.document, placed.start, placed.length, indptr, length)
