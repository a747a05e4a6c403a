"""Deals documents to parts that are read one after another, so that every prefix of parts keeps the mix that is asked.

Letters: R documents to deal, T traits, J trait values over all traits plus one, P parts, C classes.

Documents of class c go to part p with the share s_cp; S_cq = s_c0 + ... + s_cq. A document of length l in part p adds
l B_pq to the deviation D_jq of each of its values, by which the prefix that ends with part q strays:

    B_pq = [p <= q] - S_cq.

F = sum_j w_j sum_q (D_jq^2 + document_weight D'_jq^2), with D' the same in documents, changes by

    l^2 w / 2 sum_q B_pq^2 + l sum_j w_j sum_q D_jq B_pq,   sum_q D_jq B_pq = E_jp - sum_q S_cq D_jq,

twice, and by the documents' terms; E_jp = sum_{q >= p} D_jq, and the last sum is the same for every p. So E is all that
is kept, and a document costs O(P) a trait. Every document has the last value, so that parts get their shares of
everything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Floats = NDArray[np.float64]


@kernel
def deal_to_parts(
    queue: NDArray[np.uint32],
    text: NDArray[np.integer],
    tokens: NDArray[np.int64],
    codes: NDArray[np.int32],
    weights: Floats,
    document_weight: float,
    kind: NDArray[np.int32],
    reached: Floats,
) -> NDArray[np.int16]:
    """The part of every document, int16 (R,): the part with the least F, the first of equal ones, of those in which its
    class has a share.

    queue uint32 (R,): documents, in the order they are dealt. text int (R,): equal for successive copies of one text;
    the k-th of r copies goes floor(k P / r) parts after the first, cyclically. tokens int64 (R,). codes int32 (T, R), a
    trait's value as a number among all J. weights float64 (J,), of the values; document_weight: of a document squared,
    over that of a token squared. kind int32 (R,): the class. reached float64 (C, P): S. O(R T P) time.
    """
    classes, parts = reached.shape
    # For each class: sum_q B_pq^2, and sum_{q >= p} S_q.
    squares, behind = np.zeros((classes, parts)), np.zeros((classes, parts))
    for c in range(classes):
        for p in range(parts):
            for q in range(parts):
                off = (1.0 if p <= q else 0.0) - reached[c, q]
                squares[c, p] += off * off
                if q >= p:
                    behind[c, p] += reached[c, q]
            if reached[c, p] == (reached[c, p - 1] if p else 0.0):
                squares[c, p] = np.inf
    excess = np.zeros((weights.shape[0], parts))
    excess_documents = np.zeros((weights.shape[0], parts))
    own, score = np.empty(parts), np.empty(parts)
    out = np.zeros(tokens.shape[0], np.int16)
    everything = weights.shape[0] - 1
    at = 0
    while at < queue.shape[0]:
        copies = 1
        while at + copies < queue.shape[0] and text[at + copies] == text[at]:
            copies += 1
        score[:] = 0.0
        for k in range(copies):
            document = queue[at + k]
            length = float(tokens[document])
            own[:] = 0.0
            weight = 0.0
            for t in range(codes.shape[0] + 1):
                value = everything if t == codes.shape[0] else codes[t, document]
                by_token, by_document = weights[value] * length, weights[value] * document_weight
                weight += weights[value]
                in_tokens, in_documents = excess[value], excess_documents[value]
                for p in range(parts):
                    own[p] += by_token * in_tokens[p] + by_document * in_documents[p]
            square = 0.5 * weight * (length * length + document_weight)
            for p in range(parts):
                own[p] += square * squares[kind[document], p]
            turn = k * parts // copies % parts
            for p in range(parts - turn):
                score[p] += own[p + turn]
            for p in range(turn):
                score[parts - turn + p] += own[p]
        best = int(np.argmin(score))
        for k in range(copies):
            document = queue[at + k]
            part = (best + k * parts // copies) % parts
            out[document] = part
            length = float(tokens[document])
            for t in range(codes.shape[0] + 1):
                value = everything if t == codes.shape[0] else codes[t, document]
                in_tokens, in_documents = excess[value], excess_documents[value]
                for p in range(parts):
                    added = parts - max(p, part) - behind[kind[document], p]
                    in_tokens[p] += length * added
                    in_documents[p] += added
        at += copies
    return out
