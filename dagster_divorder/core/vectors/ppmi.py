"""Token vectors from co-occurrence in documents: positive pointwise mutual information, then a truncated SVD.

Letters: V vocabulary, D dims, T tokens, P pieces of text, C context tokens.

A document is cut evenly into pieces of at most PIECE_TOKENS tokens. n_tc is the number of pieces with both token t and
context c (the C tokens that occur in the most pieces). With row sums r, column sums k and total n,

    PPMI_tc = max(0, log(n_tc n / (r_t k_c))) = U S V'

and the vectors are the first D columns of U, unscaled: U clusters better than U sqrt(S) and U S.

Guarantee: no randomness unless all co-occurrences are independent. The same bytes for any number of threads (BLAS runs
on one). V comes from the eigenvectors of the C x C Gram matrix, exactly and faster than scikit-learn's TruncatedSVD.
Cost: O(sum of a piece's distinct tokens x its contexts) counting, V C^2 for the Gram matrix; memory 12 bytes for each
n_tc above 0 + 2 BLOCK_ROWS x C float32 + C^2 float64.
Sources: Church and Hanks 1990 (PMI); Levy, Goldberg and Dagan 2015 (PPMI-SVD, U alone better than U S).
Known weakness: a token in few pieces has large, noisy PMI; a larger sample helps. Measurements:
docs/decisions/base-model.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONTEXTS = 2048
PIECE_TOKENS = 1024
"""Tokens of a piece. Without pieces, every token of a single book would co-occur with every other."""

BLOCK_ROWS = 2048
TABLE_SCALE = 0.02
"""Root mean square of the entries: the usual initial spread of embedding tables in transformers."""

RANK_TOLERANCE = 1e-6
"""Squared singular values below this share of the largest are rounding noise of float32 products."""


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """vectors float32 (V, D), zero for unseen tokens and in columns beyond `rank`; random if rank is 0.

    explained: share of the squared PPMI in the first D components.
    """

    vectors: NDArray[np.float32]
    rank: int
    explained: float
    pieces: int
    contexts: int


def token_vectors(
    ids: NDArray[np.integer],
    lengths: NDArray[np.int64],
    vocabulary: int,
    dim: int,
    *,
    seed: int = 0,
    advance: Callable[[int], object] = lambda rows: None,
) -> TokenVectors:
    """Token vectors of a sample: ids (T,) flat, below `vocabulary`; lengths (N,). `advance` is called with numbers of
    finished rows of PPMI, 2 V in all.

    If there are fewer than D components (a small or uniform sample), the other columns are zero. If there are none (one
    short text, or all texts alike), all vectors are random, drawn from `seed`, so that different texts still differ.
    """
    # SciPy has its own BLAS, and the thread limit covers only libraries that are already loaded.
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_limits

    pieces = in_pieces(ids, lengths, vocabulary)
    counts = pair_counts(pieces)
    column_sums, contexts = counts.sum(axis=0), counts.shape[1]
    vectors = np.zeros((vocabulary, dim), np.float32)
    blocks = [slice(first, first + BLOCK_ROWS) for first in range(0, vocabulary, BLOCK_ROWS)]
    with threadpool_limits(limits=1):
        gram = np.zeros((contexts, contexts))
        for rows in blocks:
            block = ppmi(counts[rows], column_sums)
            gram += block.T @ block
            advance(len(block))
        directions, squares = _leading(gram, dim)
        rank = len(squares)
        for rows in blocks if rank else []:
            block = ppmi(counts[rows], column_sums)
            vectors[rows, :rank] = block @ directions
            advance(len(block))
    if rank:
        vectors[:, :rank] *= (TABLE_SCALE * np.sqrt(vocabulary / squares)).astype(np.float32)
    else:
        vectors = np.random.default_rng(seed).normal(0.0, TABLE_SCALE, vectors.shape).astype(np.float32)
    total = float(np.trace(gram))
    return TokenVectors(
        vectors=vectors,
        rank=rank,
        explained=float(squares.sum()) / total if total else 0.0,
        pieces=pieces.shape[0],
        contexts=contexts,
    )


def in_pieces(ids: NDArray[np.integer], lengths: NDArray[np.int64], vocabulary: int) -> Any:
    """Sparse int32 (P, V): 1 where a piece has a token."""
    from scipy.sparse import coo_array

    pieces_of = -(-lengths // PIECE_TOKENS)
    document = np.repeat(np.arange(len(lengths)), lengths)
    at = np.arange(len(ids)) - (np.cumsum(lengths) - lengths)[document]
    piece = (np.cumsum(pieces_of) - pieces_of)[document] + at * pieces_of[document] // lengths[document]
    places = piece.astype(np.int32), ids.astype(np.int32)
    pieces = coo_array((np.ones(len(ids), np.int32), places), (int(pieces_of.sum()), vocabulary)).tocsr()
    pieces.data[:] = 1
    return pieces


def pair_counts(pieces: Any) -> Any:
    """n_tc, sparse int32 (V, C)."""
    frequency = pieces.sum(axis=0)
    chosen = np.argsort(-frequency, kind="stable")[: min(CONTEXTS, np.count_nonzero(frequency))]
    return (pieces.T @ pieces[:, chosen]).tocsr()


def ppmi(counts: Any, column_sums: NDArray[np.int64]) -> NDArray[np.float32]:
    """Rows of PPMI, float32 (n, C), from the same rows of n_tc; column_sums: k of the whole n_tc."""
    block = counts.toarray().astype(np.float32)
    block /= np.maximum(counts.sum(axis=1), 1).astype(np.float32)[:, None]
    block *= (column_sums.sum() / column_sums).astype(np.float32)
    # log(max(1, x)) = max(0, log x), which avoids the logarithm of zero.
    return np.log(np.maximum(block, 1.0, out=block), out=block)


def _leading(gram: NDArray[np.float64], dim: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """(eigenvectors float32 (C, R), eigenvalues float64 (R,)), largest first, R <= dim, without rounding noise. The
    largest entry of each vector is positive, as its sign is arbitrary."""
    from scipy.linalg import eigh

    contexts = len(gram)
    if not contexts or not gram.any():
        return np.zeros((contexts, 0), np.float32), np.zeros(0)
    values, vectors = eigh(gram, subset_by_index=[max(0, contexts - dim), contexts - 1])
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = values > RANK_TOLERANCE * values[0]
    values, vectors = values[kept], vectors[:, kept]
    largest = np.abs(vectors).argmax(axis=0)
    return (vectors * np.sign(vectors[largest, np.arange(len(values))])).astype(np.float32), values
