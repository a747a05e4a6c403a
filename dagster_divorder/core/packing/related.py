"""related: pieces of one cluster stand together, near ones next to each other, and are then laid end to end.

In each cluster a path goes from piece to piece, always to the nearest one not yet on it, over a graph of the nearest
neighbours by cosine. Where all neighbours of a piece are on the path already, it goes on from the last piece before
that has one left, and else from the first piece left. Copies would be nearest of all, so the pieces are packed in parts
without any (`packing.parts`); those of which a part would have several stand evenly among the others.
Guarantee: in each part the clusters come in the order of their labels; a sequence has pieces of two clusters only where
one ends, or for the sake of copies.
Cost: O(P BLOCK D) time; memory for the vectors of one cluster. A cluster of more than BLOCK pieces is halved, along
the line between two pieces that are far apart, until its parts are small enough for exact search.
Source: in-context pretraining (Shi et al. 2024), there with a graph over the whole corpus; Don't Shuffle, Optimize's
cluster-packed sequences.
Known weakness: the contrary of diverse sequences, on purpose, and neighbouring sequences are of one cluster too: order
the sequences afterwards. Near pieces in different clusters, or on both sides of a halving, do not meet.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_faiss_thread
from dagster_divorder.core.checks import finite
from dagster_divorder.core.packing import concat
from dagster_divorder.core.packing.pieces import Ints, PackedSequences, PackingProblem, Vectors
from dagster_divorder.errors import InputError

NEIGHBOURS = 32
"""Neighbours of a piece in the graph: with more, the path has fewer leaps and costs more."""

BLOCK = 8192
"""Pieces searched exactly: more find nearer neighbours, at a proportional cost a piece."""


def pack(problem: PackingProblem) -> PackedSequences:
    if problem.labels is None or problem.vectors is None:
        raise InputError("method 'related' got no labels or no vectors; it needs both, for every piece")
    # A document longer than a sequence counts as one: all that is due while it lasts comes right behind it.
    length = np.minimum(problem.pieces.length, problem.sequence_length)
    order = np.arange(len(length))
    for begin, end in pairwise(problem.bounds.tolist()):
        part = order[begin:end]
        loose = part[~problem.kept[begin:end]]
        by_label = loose[np.argsort(problem.labels[loose], kind="stable")]
        starts = np.flatnonzero(np.diff(problem.labels[by_label], prepend=-1))
        paths = [_path(cluster, problem.vectors) for cluster in np.split(by_label, starts[1:])]
        path = np.concatenate([by_label[:0], *paths])
        # What keeps its place keeps it in tokens, whatever the lengths of what is around it.
        times = np.arange(len(part)) / max(1, len(part))
        times[path - begin] = (np.cumsum(length[path]) - length[path]) / max(1, length[path].sum())
        order[begin:end] = part[np.argsort(times, kind="stable")]
    return concat.pack(replace(problem, pieces=problem.pieces.take(order)))


def _path(cluster: Ints, vectors: Vectors) -> Ints:
    """The pieces of one cluster, int64 (n,), nearest neighbours next to each other."""
    if not len(cluster):
        return cluster
    rows = np.asarray(vectors(cluster), np.float32)
    if rows.ndim != 2 or len(rows) != len(cluster):
        raise InputError(
            f"vectors have the shape {rows.shape}; expected one row a piece: ({len(cluster)}, D)"
        )
    finite("the vectors", rows)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    points = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    blocks = _halved(np.arange(len(cluster)), points)
    return cluster[np.concatenate([block[_nearest_path(points[block])] for block in blocks])]


def _halved(items: Ints, points: NDArray[np.float32]) -> list[Ints]:
    """Parts of at most BLOCK items, cut at the median along the line between two items that are far apart."""
    if len(items) <= BLOCK:
        return [items]
    # einsum, unlike a matrix product, sums in an order that no number of threads changes.
    rows = points[items]
    one = rows[np.einsum("ij,j->i", rows, rows[0]).argmin()]
    other = rows[np.einsum("ij,j->i", rows, one).argmin()]
    along = np.argsort(np.einsum("ij,j->i", rows, one - other), kind="stable")
    middle = len(items) // 2
    return _halved(items[np.sort(along[:middle])], points) + _halved(items[np.sort(along[middle:])], points)


def _nearest_path(points: NDArray[np.float32]) -> Ints:
    """An order, int64 (n,), of points float32 (n, D) of length 1."""
    import faiss

    from dagster_divorder.core.kernels.packing import nearest_first_path

    neighbours = min(NEIGHBOURS + 1, len(points))  # each is its own nearest
    with one_faiss_thread():
        cosine, index = faiss.knn(points, points, neighbours, metric=faiss.METRIC_INNER_PRODUCT)
    return nearest_first_path(index, cosine)
