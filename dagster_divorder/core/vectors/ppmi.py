"""Token vectors from co-occurrence in documents: positive pointwise mutual information, then a truncated SVD.

Letters: V vocabulary, D dims, T tokens, P pieces of text, C context tokens.

A document is cut evenly into pieces of at most PIECE_TOKENS tokens. n_tc is the number of pieces with both token t and
context c (the C tokens that occur in the most pieces). With row sums r, column sums k and total n,

    PPMI_tc = max(0, log(n_tc n / (r_t k_c))) = U S V'

and the vectors are the first D columns of U, unscaled: U clusters better than U sqrt(S) and U S.

Guarantee: no randomness unless all co-occurrences are independent. The same bytes for any number of threads (BLAS runs
on one). V comes from the eigenvectors of the C x C Gram matrix, so PPMI is never in memory as a whole.
Cost: O(T log T) sorting, counting O(sum of a piece's distinct tokens x its contexts) twice, V C^2 for the Gram
matrix; memory 24 bytes for each distinct token of a piece + 3 BLOCK_ROWS x C float32 + C^2 float64.
Sources: Church and Hanks 1990 (PMI); Levy, Goldberg and Dagan 2015 (PPMI-SVD, U alone better than U S).
Known weakness: a token in few pieces has large, noisy PMI; a larger sample helps. Measurements:
docs/decisions/base-model.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.distinct import distinct_values

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


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pieces of each token, contexts of each piece, and the sums of the table n_tc."""

    pieces: NDArray[np.int64]
    piece_starts: NDArray[np.int64]
    contexts: NDArray[np.int64]
    context_starts: NDArray[np.int64]
    row_sums: NDArray[np.float64]
    column_sums: NDArray[np.float64]


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

    pairs = _pairs(ids, lengths, vocabulary)
    contexts = len(pairs.column_sums)
    vectors = np.zeros((vocabulary, dim), np.float32)
    with threadpool_limits(limits=1):
        gram = np.zeros((contexts, contexts))
        for first in range(0, vocabulary, BLOCK_ROWS):
            block = _ppmi(pairs, first, min(first + BLOCK_ROWS, vocabulary))
            gram += block.T @ block
            advance(len(block))
        directions, squares = _leading(gram, dim)
        rank = len(squares)
        for first in range(0, vocabulary if rank else 0, BLOCK_ROWS):
            block = _ppmi(pairs, first, min(first + BLOCK_ROWS, vocabulary))
            vectors[first : first + len(block), :rank] = block @ directions
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
        pieces=len(pairs.context_starts) - 1,
        contexts=contexts,
    )


def _pairs(ids: NDArray[np.integer], lengths: NDArray[np.int64], vocabulary: int) -> _Pairs:
    starts = np.cumsum(lengths) - lengths
    pieces_of = -(-lengths // PIECE_TOKENS)
    first_piece = np.cumsum(pieces_of) - pieces_of
    document = np.repeat(np.arange(len(lengths)), lengths)
    piece = (
        first_piece[document]
        + (np.arange(len(ids)) - starts[document]) * pieces_of[document] // lengths[document]
    )
    n_pieces = int(pieces_of.sum())

    token_pieces = distinct_values(ids.astype(np.int64) * n_pieces + piece)
    token, piece = np.divmod(token_pieces, n_pieces) if n_pieces else (token_pieces, token_pieces)
    in_pieces = np.bincount(token, minlength=vocabulary)
    chosen = np.argsort(-in_pieces, kind="stable")[: min(CONTEXTS, np.count_nonzero(in_pieces))]

    context_of = np.full(vocabulary, -1, np.int64)
    context_of[chosen] = np.arange(len(chosen))
    is_context = context_of[token] >= 0
    by_piece = np.sort(piece[is_context] * len(chosen) + context_of[token[is_context]])
    context_piece, context = np.divmod(by_piece, len(chosen)) if len(chosen) else (by_piece, by_piece)
    contexts_in = np.bincount(context_piece, minlength=n_pieces)
    tokens_in = np.bincount(piece, minlength=n_pieces)
    return _Pairs(
        pieces=piece,
        piece_starts=_starts(in_pieces),
        contexts=context,
        context_starts=_starts(contexts_in),
        row_sums=np.bincount(token, contexts_in[piece], vocabulary).astype(np.float64),
        column_sums=np.bincount(context, tokens_in[context_piece], len(chosen)).astype(np.float64),
    )


def _ppmi(pairs: _Pairs, first: int, last: int) -> NDArray[np.float32]:
    """Rows [first, last) of PPMI, float32 (last - first, C)."""
    from dagster_divorder.core.kernels.pool import count_pairs

    block = np.empty((last - first, len(pairs.column_sums)), np.float32)
    count_pairs(pairs.pieces, pairs.piece_starts, pairs.contexts, pairs.context_starts, first, last, block)
    columns = (pairs.row_sums.sum() / pairs.column_sums).astype(np.float32)
    rows = np.maximum(pairs.row_sums[first:last, None], 1.0).astype(np.float32)
    block /= rows
    block *= columns
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


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts)))
