"""best_fit: pieces of up to L tokens are never cut; each goes into the sequence with the least sufficient room.

Pieces of more than half a sequence are packed first, then the others, both in the order of the documents, so that a
sequence holds their mix. A piece longer than L is cut into runs of L tokens; its remainder is packed like any other
piece. The sequences are then shuffled, since full ones come first. Inside a sequence the runs keep the pieces' order.
Pieces with copies are packed and shuffled in parts (`packing.parts`); a sequence with a piece that keeps its place is
not shuffled; it takes that place.
Guarantee: only pieces longer than L are cut; no sequence holds two copies of a piece. Without copies there are at most
17/10 of the fewest possible sequences (Dosa and Sgall 2014); on real corpora, a few in a thousand more than the fewest.
Cost: O(P log L) time, O(P + L) memory. Source: best fit (Johnson et al. 1974) over a segment tree, as in "Fewer
Truncations Improve Language Modeling" (Ding et al. 2024) and OLMo-core. Both take the longest piece first, which fills
sequences with pieces of one length, often alike.
Known weakness: for lengths that hardly vary and do not add up to L, longest first would pad less
(docs/decisions/packing.md).
"""

from itertools import pairwise

import numpy as np

from dagster_divorder.core.packing.pieces import PackedSequences, PackingProblem, cut


def pack(problem: PackingProblem) -> PackedSequences:
    from dagster_divorder.core.kernels.packing import best_fit

    length = problem.sequence_length
    runs = cut(problem.pieces, length)
    piece = np.arange(len(problem.pieces)).repeat(-(-problem.pieces.length // length))
    copy, kept = piece if problem.copies is None else problem.copies[piece], problem.kept[piece]
    if 2 * kept.sum() * length <= runs.length.sum():
        # At most one of these texts a sequence, so that each has its own times, unless that takes too many sequences.
        copy = np.where(kept, -1, copy)
    sequence, sequences = np.empty(len(runs), np.int64), 0
    shuffled, parts = [], []
    random = np.random.default_rng(problem.seed)
    for first, next_ in pairwise(problem.bounds.tolist()):
        begin, end = np.searchsorted(piece, [first, next_]).tolist()
        lengths, in_place = runs.length[begin:end], kept[begin:end]
        # Texts with many copies come first, because they need room in many sequences: the longest first, copies of one
        # text together.
        rank = np.where(in_place, -lengths, 2 * lengths <= length)
        turns = np.lexsort((np.where(in_place, copy[begin:end], 0), rank, ~in_place))
        inside, opened = best_fit(lengths, turns, copy[begin:end], length)
        sequence[begin:end] = inside + sequences
        # If a sequence has several texts that keep their places, the first one counts, so it is written last.
        kept_runs = turns[: in_place.sum()][::-1]
        times = np.full(opened, np.nan)
        times[inside[kept_runs]] = (piece[begin:end][kept_runs] + 0.5 - first) / (next_ - first)
        places, free = random.permutation(opened), np.isnan(times)
        times[free] = (np.argsort(np.argsort(places[free])) + 0.5) / free.sum()
        shuffled.append(np.argsort(np.argsort(times, kind="stable")) + sequences)
        sequences += opened
        parts.append(sequences)
    position = np.concatenate(shuffled)[sequence]
    placed = runs.take(np.argsort(position, kind="stable"))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(position, minlength=sequences))])
    return PackedSequences(
        placed.document, placed.start, placed.length, indptr, length, parts=np.array(parts[:-1], np.int64)
    )
