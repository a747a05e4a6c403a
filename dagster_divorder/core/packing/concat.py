"""concat: pieces end to end in their order, cut at every L tokens, as most pretraining packers do.

Guarantee: only the last sequence has padding; tokens keep the order of the pieces.
Cost: O((P + S) log (P + S)) time. Source: GPT-3 (Brown et al. 2020) and common practice since.
Known weakness: documents are cut (a third of them at a mean length of half a sequence), and a second part is read
without its beginning (Ding et al. 2024).
"""

import numpy as np

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.packing.pieces import PackedSequences, PackingProblem


def pack(problem: PackingProblem) -> PackedSequences:
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
