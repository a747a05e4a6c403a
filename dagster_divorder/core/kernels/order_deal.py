"""Deals documents to parts that are read one after another, so that every prefix of parts keeps the corpus's mix.

Letters: R documents to deal, T traits, J trait values over all traits plus one, P parts.

Part p is to have the share s_p of all, and S_q = s_0 + ... + s_q. With T_jp the tokens of value j in part p so far, and
T_j those in all parts, the prefix that ends with part q strays by

    D_jq = sum_{r <= q} T_jr - S_q T_j,

and likewise in documents. A document of length l in part p adds l B_pq to its values' D_jq, where B_pq = [p <= q] - S_q.
So F = sum_j w_j sum_q (D_jq^2 + documents_weight D'_jq^2) changes by

    l^2 M_pp + 2 l sum_j w_j sum_r M_pr T_jr,  M = B B^T,

and the documents' terms. `excess` holds sum_r M_pr T_jr for every j and p. Every document has the last value, so that
parts get their shares of everything.
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
    products: Floats,
) -> NDArray[np.int16]:
    """The part of every document, int16 (R,): the part with the least F, the first of equal ones.

    queue uint32 (R,): documents, in the order they are dealt. text int (R,): equal for successive copies of one text;
    the k-th of r copies goes floor(k P / r) parts after the first, cyclically.
    tokens int64 (R,); codes int32 (T, R), a trait's value as a number among all J.
    weights float64 (J,), of the values; document_weight: of a document squared, over that of a token squared.
    products float64 (P, P): M.
    O(R T P) time.
    """
    parts = products.shape[0]
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
            square = weight * (length * length + document_weight)
            for p in range(parts):
                own[p] += 0.5 * square * products[p, p]
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
                    in_tokens[p] += length * products[part, p]
                    in_documents[p] += products[part, p]
        at += copies
    return out
