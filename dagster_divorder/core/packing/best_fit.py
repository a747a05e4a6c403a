"""best_fit: pieces of up to L tokens are never cut; each goes into the sequence with the least sufficient room.

Pieces of more than half a sequence are packed first, then the others, both in the order of the documents, so that a
sequence holds their mix. A piece longer than L is cut into runs of L tokens; its remainder is packed like any other
piece. The sequences are then shuffled, since full ones come first. Inside a sequence the runs keep the pieces' order.
Guarantee: only pieces longer than L are cut; no sequence holds two copies of a piece. Without copies there are at most
17/10 of the fewest possible sequences (Dosa and Sgall 2014); on real corpora, a few in a thousand more than the fewest.
Cost: O(P log L) time, O(P + L) memory. Source: best fit (Johnson et al. 1974) over a segment tree, as in "Fewer
Truncations Improve Language Modeling" (Ding et al. 2024) and OLMo-core. Both take the longest piece first, which fills
sequences with pieces of one length, often alike.
Known weakness: for lengths that hardly vary and do not add up to L, longest first would pad less
(docs/decisions/packing.md).
"""

import numpy as np

from dagster_divorder.core.packing.pieces import PackedSequences, PackingProblem, cut


def pack(problem: PackingProblem) -> PackedSequences:
    from dagster_divorder.core.kernels.packing import best_fit

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
    sequence, opened = best_fit(runs.length, turns, copy, length)
    position = np.random.default_rng(problem.seed).permutation(opened)[sequence]
    placed = runs.take(np.argsort(position, kind="stable"))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(position, minlength=opened))])
    return PackedSequences(placed.document, placed.start, placed.length, indptr, length)
