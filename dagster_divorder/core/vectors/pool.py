"""Document vectors from token ids: distinct tokens x count x weight x table row, L2-normalised.

Letters: N documents, D dims, V vocabulary, T tokens.
Guarantee: a document's vector depends only on its own tokens, not on the number of threads or how calls divide the
documents. Cost: O(T + distinct tokens per document x D), no copy of the table; 12 V bytes of scratch a thread.
Sources: Diversity-Ordered Training (mean of token embeddings); Arora, Liang and Ma 2017 (weighting, then removing the
common direction); Sparck Jones 1972 (idf). Known weakness: word order is ignored. Measurements:
docs/decisions/base-model.md.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError

Pooling = Literal["mean", "idf"]

RANGES_PER_THREAD = 4
"""Ranges of documents for each thread: several even out their lengths; each needs scratch of V entries."""


def token_weights(
    document_frequency: NDArray[np.int64], documents: int, pooling: Pooling
) -> NDArray[np.float32]:
    """float32 (V,): `mean` gives ones, `idf` gives log((documents + 1) / (df + 1/2)).

    The 1 and the 1/2 keep every weight positive, so that a corpus of one document has vectors too.
    """
    if pooling == "mean":
        return np.ones(len(document_frequency), np.float32)
    return np.log((documents + 1) / (document_frequency + 0.5)).astype(np.float32)


def document_frequency(
    ids: NDArray[np.integer], lengths: NDArray[np.int64], vocabulary: int
) -> NDArray[np.int64]:
    """Number of documents with each token, int64 (V,). ids (T,) flat, lengths (N,). Raises as `pool` does."""
    from dagster_divorder.core.kernels.pool import count_documents

    tokens, starts = flat(ids, lengths, vocabulary)
    frequency = np.zeros(vocabulary, np.int64)
    count_documents(tokens, starts, frequency)
    return frequency


def pool(
    ids: NDArray[np.integer],
    lengths: NDArray[np.int64],
    table: NDArray[np.float32],
    weights: NDArray[np.float32],
    *,
    threads: int = 1,
) -> NDArray[np.float32]:
    """Unit vectors, float32 (N, D): each document's weighted sum of table rows, or zero if the sum is zero.

    ids (T,) flat, lengths (N,), table float32 (V, D), weights float32, one for each id of the tokenizer; at most V, as
    tables are often padded.

    Raises:
        InputError: there are more weights than rows, or an id has no weight.
    """
    from dagster_divorder.core.kernels.pool import pool_rows

    table = np.ascontiguousarray(table, np.float32)
    weights = np.ascontiguousarray(weights, np.float32)
    if len(weights) > len(table):
        raise InputError(
            f"{len(weights)} weights for a table of {len(table)} rows; expected no more weights than rows"
        )
    tokens, starts = flat(ids, lengths, len(weights))
    pooled = np.empty((len(lengths), table.shape[1]), np.float32)

    def fill(first: int, last: int) -> None:
        pool_rows(tokens, starts, first, last, table, weights, pooled)

    if threads == 1:
        fill(0, len(lengths))
        return pooled
    # Ranges with about the same number of tokens.
    inner = np.linspace(0, len(tokens), RANGES_PER_THREAD * threads + 1)[1:-1]
    cuts = [0, *np.searchsorted(starts[:-1], inner).tolist(), len(lengths)]
    with ThreadPoolExecutor(threads) as workers:
        list(workers.map(fill, cuts[:-1], cuts[1:]))
    return pooled


def flat(
    ids: NDArray[np.integer], lengths: NDArray[np.int64], vocabulary: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """(checked ids uint32 (T,), offsets of documents int64 (N + 1,)). Raises as `pool` does."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    assert starts[-1] == len(ids)
    if len(ids) and (ids.max() >= vocabulary or ids.min() < 0):
        raise InputError(
            f"token id {ids.max() if ids.max() >= vocabulary else ids.min()} is outside a vocabulary of {vocabulary}; "
            "tokenise with the tokenizer of the same model"
        )
    return np.ascontiguousarray(ids, np.uint32), starts
