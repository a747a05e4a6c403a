"""Checks that a plan of sequences holds every token once, by counting its runs.

Letters: N documents, Q runs.
Cost: O(N), and a sort of the runs.
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
    # Documents are laid end to end; each run counts from the furthest end of those that begin before it.
    begins = np.cumsum(lengths) - lengths
    end = begins[document] + np.minimum(start + length, lengths[document])
    start = np.minimum(begins[document] + start, end)
    order = np.argsort(start, kind="stable")
    reached = np.maximum.accumulate(np.append(0, end[order]))[:-1]
    new = np.maximum(end[order] - np.maximum(start[order], reached), 0)
    covered, in_plan = (
        np.bincount(of, tokens, len(lengths)).astype(np.int64)
        for of, tokens in ((document[order], new), (document, length))
    )
    inside = int((end - start).sum())
    fault = np.flatnonzero((covered != lengths) | (in_plan > lengths))
    return Coverage(
        tokens=int(lengths.sum()),
        missing=int((lengths - covered).sum()),
        doubled=inside - int(covered.sum()),
        outside=int(packed.length.sum()) - inside,
        first=int(fault[0]) if len(fault) else None,
    )
