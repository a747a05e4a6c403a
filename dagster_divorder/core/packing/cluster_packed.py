"""cluster_packed: pieces end to end, sorted by cluster and, within a cluster, along a path of near neighbours.

The path visits the pieces of a cluster over a graph of nearest neighbours by cosine, always to the nearest unvisited
piece. If a piece has no unvisited neighbour, the path continues from the latest piece that has one, or else from the
first unvisited piece. Copies would be nearest neighbours: give each call pieces without copies.
Guarantee: clusters have the order of their labels; a sequence mixes two clusters only where one ends.
Cost: O(P BLOCK D) time; memory for the vectors of one cluster. A cluster of more than BLOCK pieces is halved, along the
line between two distant pieces, until its parts are small enough for exact search.
Source: in-context pretraining (Shi et al. 2024), which uses a graph over the whole corpus; the cluster-packed sequences
of Don't Shuffle, Optimize.
Known weakness: sequences are uniform on purpose, and so are their neighbours: order the sequences afterwards. Near
pieces in different clusters, or in different halves, do not meet.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.blas import one_faiss_thread
from dagster_divorder.core.checks import finite
from dagster_divorder.core.packing.methods import concat
from dagster_divorder.core.packing.pieces import Ints, PackedSequences, PackingProblem, Vectors

NEIGHBOURS = 32
"""Neighbours of a piece in the graph: more make fewer leaps and cost more."""

BLOCK = 8192
"""Most pieces of an exact search. With more, neighbours are nearer, and each piece costs proportionally more."""


def pack(problem: PackingProblem) -> PackedSequences:
    assert problem.labels is not None and problem.vectors is not None
    by_label = np.argsort(problem.labels, kind="stable")
    starts = np.flatnonzero(np.diff(problem.labels[by_label], prepend=-1))
    paths = [_path(cluster, problem.vectors) for cluster in np.split(by_label, starts[1:])]
    return concat(replace(problem, pieces=problem.pieces.take(np.concatenate([by_label[:0], *paths]))))


def _path(cluster: Ints, vectors: Vectors) -> Ints:
    """The pieces of one cluster along the path, int64 (n,)."""
    import faiss

    from dagster_divorder.core.kernels.packing import nearest_first_path

    if not len(cluster):
        return cluster
    rows = np.asarray(vectors(cluster), np.float32)
    finite("the vectors", rows)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    points = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    path = []
    for block in _halved(np.arange(len(cluster)), points):
        own, neighbours = points[block], min(NEIGHBOURS + 1, len(block))  # each is its own nearest
        with one_faiss_thread():
            cosine, index = faiss.knn(own, own, neighbours, metric=faiss.METRIC_INNER_PRODUCT)
        path.append(block[nearest_first_path(index, cosine)])
    return cluster[np.concatenate(path)]


def _halved(items: Ints, points: NDArray[np.float32]) -> list[Ints]:
    """Parts of at most BLOCK items, by halving at the median along the line between two distant items."""
    if len(items) <= BLOCK:
        return [items]
    # Unlike a matrix product, einsum sums in one order for any number of threads.
    rows = points[items]
    one = rows[np.einsum("ij,j->i", rows, rows[0]).argmin()]
    other = rows[np.einsum("ij,j->i", rows, one).argmin()]
    along = np.argsort(np.einsum("ij,j->i", rows, one - other), kind="stable")
    middle = len(items) // 2
    return _halved(items[np.sort(along[:middle])], points) + _halved(items[np.sort(along[middle:])], points)
