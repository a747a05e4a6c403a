"""none: a sequence holds one piece, as in trainers that do not pack records.

Pieces longer than L are cut into sequences of L tokens. The sequences have the order of the pieces.
Guarantee: no sequence holds tokens of two pieces.
Cost: O(P + S) time and memory.
Known weakness: the padding of short pieces.
"""

import numpy as np

from dagster_divorder.core.packing.pieces import PackedSequences, PackingProblem, cut


def pack(problem: PackingProblem) -> PackedSequences:
    runs = cut(problem.pieces, problem.sequence_length)
    return PackedSequences(
        document=runs.document,
        start=runs.start,
        length=runs.length,
        indptr=np.arange(len(runs) + 1),
        sequence_length=problem.sequence_length,
    )
