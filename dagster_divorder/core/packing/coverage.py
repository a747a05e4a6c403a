"""Checks that a plan of sequences holds every token once, by counting its runs.

Letters: N documents, Q runs.
Cost: O(N + Q), and a sort of the runs of documents that have several.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dagster_divorder.core.packing.pieces import Ints, PackedSequences


@dataclass(frozen=True, slots=True)
class Coverage:
    """tokens: of all documents. missing: in no run. doubled: repeats. outside: beyond a document's end, or in an
    unknown document. first: the lowest known document with a fault; None if there is none."""

    tokens: int
    missing: int
    doubled: int
    outside: int
    first: int | None

    @property
    def exact(self) -> bool:
        """Whether every token is in exactly one run."""
        return not (self.missing or self.doubled or self.outside)


def coverage(packed: PackedSequences, lengths: Ints) -> Coverage:
    """Counts how the runs of a plan cover documents of `lengths`, int64 (N,), in tokens."""
    known = (packed.document >= 0) & (packed.document < len(lengths))
    document, start, length = packed.document[known], packed.start[known], packed.length[known]
    end = np.minimum(start + length, lengths[document])
    start = np.minimum(start, end)
    outside = int(packed.length.sum() - (end - start).sum())

    runs = np.bincount(document, minlength=len(lengths))
    covered = np.zeros(len(lengths), np.int64)
    once = runs[document] == 1
    covered[document[once]] = (end - start)[once]
    # Of several runs in a document, each counts from the furthest end of the runs that begin before it.
    several = np.flatnonzero(~once)
    several = several[np.lexsort((start[several], document[several]))]
    document, start, end = document[several], start[several], end[several]
    if len(document):
        # Documents laid end to end need one running maximum.
        place = np.cumsum(np.concatenate([[False], document[1:] != document[:-1]])) * (lengths.max() + 1)
        reached = np.maximum.accumulate(end + place) - place
        before = np.concatenate([[0], reached[:-1]])
        before[np.concatenate([[True], document[1:] != document[:-1]])] = 0
        np.add.at(covered, document, np.maximum(end - np.maximum(start, before), 0))

    laid = int(packed.length.sum()) - outside
    fault = np.flatnonzero(covered != lengths)
    doubled = laid - int(covered.sum())
    if doubled or outside:
        # Documents with more tokens in the plan than of their own.
        in_plan = np.bincount(packed.document[known], weights=packed.length[known], minlength=len(lengths))
        fault = np.union1d(fault, np.flatnonzero(in_plan > lengths))
    return Coverage(
        tokens=int(lengths.sum()),
        missing=int((lengths - covered).sum()),
        doubled=doubled,
        outside=outside,
        first=int(fault[0]) if len(fault) else None,
    )
