"""Deals documents to shards that are read one after another, so that every prefix of shards keeps the corpus's mix.

Letters: R documents to deal, N documents, T traits, J trait values over all traits plus one, P shards.

With T_jp the tokens of value j in shard p so far, and T_j those in all shards, the prefix that ends with shard q strays
by

    D_jq = sum_{r <= q} T_jr - (q + 1) / P T_j,

and likewise in documents. A document of length l in shard p adds l B_pq to its values' D_jq, where
B_pq = [p <= q] - (q + 1) / P. So F = sum_j w_j sum_q (D_jq^2 + unit^2 documents_weight D'_jq^2) changes by

    l^2 M_pp + 2 l sum_j w_j sum_r M_pr T_jr,  M_pr = sum_q B_pq B_rq = s_p + s_r + c - max(p, r),

s_p = p (p + 1) / 2P, c = (P + 1) (2P + 1) / 6P - 1, and the documents' terms. `excess` holds sum_r M_pr T_jr for every
j and p. Every document has the last value, so that shards get equal amounts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.kernels import kernel

Floats = NDArray[np.float64]


@kernel
def seam_products(shards: int, shard: int) -> Floats:
    """M_pr for r = `shard`, float64 (P,)."""
    s = np.arange(shards) * np.arange(1, shards + 1) / (2.0 * shards)
    c = (shards + 1) * (2 * shards + 1) / (6.0 * shards) - 1.0
    return s + s[shard] + c - np.maximum(np.arange(shards), shard)


@kernel
def deal_to_shards(
    queue: NDArray[np.uint32],
    text: NDArray[np.integer],
    tokens: NDArray[np.int64],
    codes: NDArray[np.int32],
    weights: Floats,
    document_weight: float,
    excess: Floats,
    excess_documents: Floats,
    room: NDArray[np.int64],
) -> NDArray[np.int16]:
    """The shard of every document, int16 (N,): the shard with room and the least F, the first of equal ones; 0 for
    documents outside the queue.

    queue uint32 (R,): documents, in the order they are dealt. text int (R,): equal for successive copies of one text;
    the k-th of r copies goes floor(k P / r) shards after the first, cyclically, if all these shards have room.
    tokens int64 (N,); codes int32 (T, N), a trait's value as a number among all J.
    weights float64 (J,), of the values; document_weight: of a document squared, over that of a token squared.
    excess, excess_documents float64 (J, P), of documents dealt before; both are updated. room int64 (P,): documents
    that each shard still takes, at least R in all; updated.
    O(R T P) time.
    """
    shards = room.shape[0]
    products = np.empty((shards, shards))
    for p in range(shards):
        products[p] = seam_products(shards, p)
    own, score = np.empty(shards), np.empty(shards)
    out = np.zeros(tokens.shape[0], np.int16)
    everything = excess.shape[0] - 1
    at = 0
    while at < queue.shape[0]:
        copies = 1
        while at + copies < queue.shape[0] and text[at + copies] == text[at]:
            copies += 1
        best = 0
        while True:
            score[:] = 0.0
            needed = -(-copies // shards)
            for k in range(copies):
                document = queue[at + k]
                length = float(tokens[document])
                for p in range(shards):
                    own[p] = 0.0 if room[p] >= needed else np.inf
                weight = 0.0
                for t in range(codes.shape[0] + 1):
                    value = everything if t == codes.shape[0] else codes[t, document]
                    by_token, by_document = weights[value] * length, weights[value] * document_weight
                    weight += weights[value]
                    in_tokens, in_documents = excess[value], excess_documents[value]
                    for p in range(shards):
                        own[p] += by_token * in_tokens[p] + by_document * in_documents[p]
                square = weight * (length * length + document_weight)
                for p in range(shards):
                    own[p] += 0.5 * square * products[p, p]
                turn = k * shards // copies % shards
                for p in range(shards - turn):
                    score[p] += own[p + turn]
                for p in range(turn):
                    score[shards - turn + p] += own[p]
            best = int(np.argmin(score))
            if score[best] < np.inf or copies == 1:
                break
            copies = 1
        for k in range(copies):
            document = queue[at + k]
            shard = (best + k * shards // copies) % shards
            out[document] = shard
            room[shard] -= 1
            length = float(tokens[document])
            for t in range(codes.shape[0] + 1):
                value = everything if t == codes.shape[0] else codes[t, document]
                in_tokens, in_documents = excess[value], excess_documents[value]
                for p in range(shards):
                    in_tokens[p] += length * products[shard, p]
                    in_documents[p] += products[shard, p]
        at += copies
    return out
