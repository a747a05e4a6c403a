"""Token vectors from co-occurrence in documents: positive pointwise mutual information, then a truncated SVD.

Letters: V vocabulary, D dims, T tokens, P pieces of text, C context tokens.

A document is cut evenly into pieces of at most PIECE_TOKENS tokens. n_tc is the number of pieces with both token t and
context c (the C tokens that occur in the most pieces). With row sums r, column sums k and total n,

    PPMI_tc = max(0, log(n_tc n / (r_t k_c))) = U S V'

and the vectors are the first D columns of U, unscaled: U clusters better than U sqrt(S) and U S.

Guarantee: the same bytes for the same seed and any number of threads (BLAS runs on one).
Cost: O(sum of a piece's distinct tokens x its contexts) counting, V C D for scikit-learn's truncated SVD; memory 8
bytes for each n_tc above 0 + V x C float32. A dense matrix is faster: on newsgroups a third of its entries are above 0.
Sources: Church and Hanks 1990 (PMI); Levy, Goldberg and Dagan 2015 (PPMI-SVD, U alone better than U S); Halko,
Martinsson and Tropp 2011 (the randomised SVD).
Known weakness: a token in few pieces has large, noisy PMI; a larger sample helps. Measurements:
docs/decisions/base-model.md.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.seeds import small_seed

CONTEXTS = 2048
PIECE_TOKENS = 1024
"""Tokens of a piece. Without pieces, every token of a single book would co-occur with every other."""

POWER_STEPS = 2
"""Passes that refine the SVD; more cost time and do not make better clusters."""
TABLE_SCALE = 0.02
"""Root mean square of the entries: the usual initial spread of embedding tables in transformers."""

RANK_TOLERANCE = 1e-3
"""Singular values below this share of the largest are rounding noise of float32 products."""


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
    ids: NDArray[np.integer], lengths: NDArray[np.int64], vocabulary: int, dim: int, *, seed: int = 0
) -> TokenVectors:
    """Token vectors of a sample: ids (T,) flat, below `vocabulary`; lengths (N,).

    If there are fewer than D components (a small or uniform sample), the other columns are zero. If there are none (one
    short text, or all texts alike), all vectors are random, so that different texts still differ.
    """
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    pieces = in_pieces(ids, lengths, vocabulary)
    matrix = ppmi(pieces)
    vectors = np.zeros((vocabulary, dim), np.float32)
    rank, explained = 0, 0.0
    if matrix.any():
        # The SVD of TruncatedSVD, which would take three times the matrix's memory for its figures.
        with threadpool_limits(limits=1):
            left, strength, _ = randomized_svd(
                matrix, min(dim, *matrix.shape), n_iter=POWER_STEPS, random_state=small_seed(seed)
            )
        rank = int((strength > RANK_TOLERANCE * strength[0]).sum())
        vectors[:, :rank] = left[:, :rank] * np.float32(TABLE_SCALE * np.sqrt(vocabulary))
        squares = np.einsum("ij,ij->i", matrix, matrix).sum(dtype=np.float64)
        explained = min(1.0, float((strength[:rank].astype(np.float64) ** 2).sum() / squares))
    else:
        vectors = np.random.default_rng(seed).normal(0.0, TABLE_SCALE, vectors.shape).astype(np.float32)
    return TokenVectors(vectors, rank, explained, pieces=pieces.shape[0], contexts=matrix.shape[1])


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


def ppmi(pieces: Any) -> NDArray[np.float32]:
    """PPMI, float32 (V, C), of sparse pieces (P, V)."""
    frequency = pieces.sum(axis=0)
    chosen = np.argsort(-frequency, kind="stable")[: min(CONTEXTS, np.count_nonzero(frequency))]
    counts = (pieces.T @ pieces[:, chosen]).tocsr()
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    counts.data = counts.data.astype(np.float32)
    matrix: NDArray[np.float32] = counts.toarray()
    del counts
    matrix /= np.maximum(rows, 1).astype(np.float32)[:, None]
    matrix *= (columns.sum() / columns).astype(np.float32)
    # log(max(1, x)) = max(0, log x), which avoids the logarithm of zero.
    return np.log(np.maximum(matrix, 1.0, out=matrix), out=matrix)
