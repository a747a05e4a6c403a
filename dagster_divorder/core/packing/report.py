"""Padding, cuts, and documents a sequence, of a packing plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.packing.pieces import Ints, PackedSequences


@dataclass(frozen=True)
class PerSequence:
    """Mean, smallest and largest over the sequences; 0 without sequences."""

    mean: float
    min: int
    max: int


@dataclass(frozen=True)
class PackingReport:
    """sequences, packed_documents, tokens: of the plan. without_tokens: empty pieces, which the plan leaves out.

    padding: tokens of padding; padding_share: relative to all tokens that a trainer reads. cut_documents: documents
    that continue in another sequence (the truncated documents of Ding et al. 2024); cut_share: relative to the plan's
    documents. documents_per_sequence, clusters_per_sequence: distinct ones; without labels clusters_per_sequence is
    None.
    """

    sequences: int
    packed_documents: int
    tokens: int
    without_tokens: int
    padding: int
    padding_share: float
    cut_documents: int
    cut_share: float
    documents_per_sequence: PerSequence
    clusters_per_sequence: PerSequence | None


def packing_report(packed: PackedSequences, labels: ArrayLike | None = None) -> PackingReport:
    """Report on a plan. labels: int (N,), the cluster of each document. O(Q log Q) in the cut documents."""
    packed_documents = len(distinct_values(packed.document))
    tokens = int(packed.length.sum())
    padding = len(packed) * packed.sequence_length - tokens
    cut_documents = _cut_documents(packed)
    clusters = None
    if labels is not None:
        clusters = _summary(distinct_per_sequence(packed.indptr, np.asarray(labels)[packed.document]))
    return PackingReport(
        sequences=len(packed),
        packed_documents=packed_documents,
        tokens=tokens,
        without_tokens=packed.without_tokens,
        padding=padding,
        padding_share=padding / max(tokens + padding, 1),
        cut_documents=cut_documents,
        cut_share=cut_documents / max(packed_documents, 1),
        documents_per_sequence=_summary(distinct_per_sequence(packed.indptr, packed.document)),
        clusters_per_sequence=clusters,
    )


def distinct_per_sequence(indptr: Ints, values: NDArray[np.integer]) -> Ints:
    """Distinct values, int (Q,) >= 0, in each sequence, int64 (S,). O(Q log Q)."""
    sequence = np.arange(len(indptr) - 1).repeat(np.diff(indptr))
    values_of_all = int(values.max(initial=0)) + 1
    met = distinct_values(sequence * values_of_all + values)
    return np.bincount(met // values_of_all, minlength=len(indptr) - 1)


def _cut_documents(packed: PackedSequences) -> int:
    """Number of documents with a run that starts above 0 and whose preceding tokens lie in another sequence."""
    later = distinct_values(packed.document[packed.start > 0])
    runs = np.flatnonzero(np.isin(packed.document, later))
    sequence = np.searchsorted(packed.indptr, runs, side="right") - 1
    order = np.lexsort((packed.start[runs], packed.document[runs], sequence))
    sequence, runs = sequence[order], runs[order]
    document, start = packed.document[runs], packed.start[runs]
    end = start + packed.length[runs]
    joined = np.zeros(len(runs), bool)
    joined[1:] = (sequence[1:] == sequence[:-1]) & (document[1:] == document[:-1]) & (start[1:] == end[:-1])
    return len(distinct_values(document[(start > 0) & ~joined]))


def _summary(values: Ints | NDArray[np.integer]) -> PerSequence:
    if not len(values):
        return PerSequence(0.0, 0, 0)
    return PerSequence(float(values.mean()), int(values.min()), int(values.max()))
