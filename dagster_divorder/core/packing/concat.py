"""concat: pieces end to end in their order, cut at every L tokens, as most pretraining packers do.

Guarantee: only the last sequence has padding; tokens keep the order of the pieces.
Cost: O(P + S) time and memory. Source: GPT-3 (Brown et al. 2020) and common practice since.
Known weakness: documents are cut (a third of them at a mean length of half a sequence), and a second part is read
without its beginning (Ding et al. 2024).
"""

from dagster_divorder.core.packing.pieces import PackedSequences, PackingProblem


def pack(problem: PackingProblem) -> PackedSequences:
    from dagster_divorder.core.kernels.packing import cut_at_multiples

    pieces = problem.pieces
    piece, start, length, indptr = cut_at_multiples(pieces.length, problem.sequence_length)
    start += pieces.start[piece]
    return PackedSequences(
        document=pieces.document[piece],
        start=start,
        length=length,
        indptr=indptr,
        sequence_length=problem.sequence_length,
    )
