"""What a plan of sequences holds: padding, cuts and documents a sequence; whether every token is in it once; how far
copies stand apart.

Letters: S sequences, Q runs, L tokens a sequence, N documents, E epochs, r copies of one text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.packing.pieces import Ints, PackedSequences


def packing_report(packed: PackedSequences, labels: NDArray[np.integer]) -> dict[str, Any]:
    """Figures of a plan: `sequences`; `packed_documents`; `tokens`; `without_tokens`, empty pieces that it leaves out;
    `padding` in tokens, and its share of all tokens that a trainer reads; `cut_documents`, which continue in another
    sequence (the truncated documents of Ding et al. 2024), and their share; distinct documents and clusters a sequence
    (`mean`, `min`, `max`). labels: int (N,), the cluster of each document. O(Q log Q)
    in the cut documents."""
    documents, tokens = len(distinct_values(packed.document)), int(packed.length.sum())
    padding, cut_documents = int(packed.padding.sum()), _cut_documents(packed)

    def per_sequence(values: NDArray[np.integer]) -> dict[str, float]:
        distinct = distinct_per_sequence(packed.indptr, values)
        if not len(distinct):
            return {"mean": 0.0, "min": 0, "max": 0}
        return {"mean": float(distinct.mean()), "min": int(distinct.min()), "max": int(distinct.max())}

    return {
        "sequences": len(packed),
        "packed_documents": documents,
        "tokens": tokens,
        "without_tokens": packed.without_tokens,
        "padding": padding,
        "padding_share": padding / max(tokens + padding, 1),
        "cut_documents": cut_documents,
        "cut_share": cut_documents / max(documents, 1),
        "documents_per_sequence": per_sequence(packed.document),
        "clusters_per_sequence": per_sequence(labels[packed.document]),
    }


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


class Coverage(NamedTuple):
    """tokens: of all documents. missing: in no run. extra: in runs, but there already, or in no document."""

    tokens: int
    missing: int
    extra: int


def coverage(packed: PackedSequences, lengths: Ints) -> Coverage:
    """Counts how the runs of a plan cover documents of `lengths`, int64 (N,), in tokens."""
    known = (packed.document >= 0) & (packed.document < len(lengths))
    document, start, length = packed.document[known], packed.start[known], packed.length[known]
    # Documents are laid end to end; each run counts from the furthest end of those that begin before it.
    begins = np.cumsum(lengths) - lengths
    end = begins[document] + np.minimum(start + length, lengths[document])
    start = np.minimum(begins[document] + start, end)
    order = np.argsort(start, kind="stable")
    reached = np.maximum.accumulate(np.append(0, end[order]))[:-1]
    covered = int(np.maximum(end[order] - np.maximum(start[order], reached), 0).sum())
    tokens = int(lengths.sum())
    return Coverage(tokens, missing=tokens - covered, extra=int(packed.length.sum()) - covered)


def sequence_spacing(packed: PackedSequences, epochs: ArrayLike, texts: Ints) -> dict[str, Any]:
    """Distances, in sequences, between successive beginnings of copies if sequences are read in the orders `epochs`,
    int (E, S); each is read E times in all.

    texts: int64 (N,), equal for documents of equal text. Figures: `copies`, documents that repeat another's text;
    `together`, successive copies in one sequence; `smallest` and `median` distance; `median_share`, of the even
    distance, S / r. None without copies. O(Q log Q).
    """
    orders = np.atleast_2d(np.asarray(epochs, np.int64))
    # Documents with each text.
    copies = np.bincount(texts[distinct_values(packed.document)], minlength=texts.max(initial=-1) + 1)
    run = np.flatnonzero((packed.start == 0) & (copies[texts[packed.document]] > 1))
    repeated = int(copies[copies > 1].sum() - (copies > 1).sum())
    sequence = np.searchsorted(packed.indptr, run, side="right") - 1
    # A row may name a sequence twice and another never, if all rows together name each E times.
    places = (
        np.argsort(orders, axis=None, kind="stable").reshape(len(packed), len(orders)).T[:, sequence].ravel()
    )
    text = np.tile(texts[packed.document[run]], len(orders))
    by_text = np.lexsort((places, text))
    text, places = text[by_text], places[by_text]
    again = np.flatnonzero(text[1:] == text[:-1])
    distance = places[again + 1] - places[again]
    if not len(distance):
        return {"copies": repeated, "together": 0, **dict.fromkeys(("smallest", "median", "median_share"))}
    return {
        "copies": repeated,
        "together": int((distance == 0).sum()),
        "smallest": int(distance.min()),
        "median": float(np.median(distance)),
        "median_share": float(np.median(distance * copies[text[again]] / len(packed))),
    }
