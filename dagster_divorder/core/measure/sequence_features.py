"""Features of training sequences for the drift test, from the plan and the traits only.

Letters: S sequences, Q runs of tokens in them, N documents, U documents in the sequences, J trait values.
Cost: O(Q log Q).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.measure.runs import ReadRuns, RunCounter, sequences_stream
from dagster_divorder.core.measure.stationarity import TENTHS, Feature
from dagster_divorder.core.packing import PackedSequences

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Ints = NDArray[np.int64]

LONG = TENTHS
"""Sequences from which a document counts as long; its parts should be spread over the tenths."""


@dataclass(frozen=True, eq=False)
class SequenceRuns(ReadRuns):
    """Sequences in an order, with their runs of at least one token. counted: int64 (Q,), tokens of each run that mixes
    and means count."""

    counted: Ints

    @classmethod
    def of(
        cls,
        packed: PackedSequences,
        order: ArrayLike,
        tokens: ArrayLike,
        count: RunCounter | None = None,
    ) -> SequenceRuns:
        """The sequences of `order`, int (S,), without end-of-text tokens. tokens: (N,), of each document, without
        end-of-text. count: gives the tokens of runs that mixes and means count; by default all."""
        read = sequences_stream(packed, order)
        length = np.minimum(read.length, np.asarray(tokens, np.int64)[read.document] - read.start)
        # A sequence may hold only an end-of-text token.
        own = length > 0
        kept = np.concatenate([[0], np.cumsum(own)])
        runs = ReadRuns(read.document[own], read.start[own], length[own], kept[read.indptr])
        return cls(**vars(runs), counted=runs.length if count is None else count(runs))

    def __len__(self) -> int:
        """S."""
        return len(self.indptr) - 1

    @cached_property
    def sequence(self) -> Ints:
        """The sequence of each run, int64 (Q,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    @cached_property
    def tokens(self) -> NDArray[np.float64]:
        """Counted tokens of each sequence, float64 (S,), at least 1."""
        return np.maximum(np.bincount(self.sequence, self.counted, len(self)), 1.0)

    def mix(self, codes: NDArray[np.integer]) -> csr_matrix:
        """Counted tokens of each value in each sequence, CSR int64 (S, J). codes: int (Q,) by run."""
        return self._counts(codes, self.counted)

    def held(self, fewest: int) -> csr_matrix:
        """Which sequences hold each document that at least `fewest` of them hold, CSR (S, G) of ones."""
        _, which = np.unique(self.document, return_inverse=True)
        occurrences = self._counts(which, np.ones(len(which), np.int64))
        occurrences.data[:] = 1
        return occurrences[:, np.bincount(occurrences.indices, minlength=occurrences.shape[1]) >= fewest]

    def _counts(self, codes: NDArray[np.integer], counts: Ints) -> csr_matrix:
        from scipy.sparse import csr_matrix

        # Construction from (row, column) pairs sums equal pairs.
        shape = (len(self), int(codes.max(initial=0)) + 1)
        return csr_matrix((counts, (self.sequence, codes)), shape=shape)


def sequence_features(
    runs: SequenceRuns, traits: Mapping[str, ArrayLike], balanced: Collection[str]
) -> Iterator[Feature]:
    """Features of the sequences in `runs` that the order did not balance: traits, pure sequences, long documents.

    traits: name -> int codes (N,), possibly with "cluster". balanced: names of the traits that the order balanced.
    """
    from scipy.sparse import csr_matrix

    for trait, codes in traits.items():
        if trait not in balanced:
            yield Feature(trait, "mix", runs.mix(np.asarray(codes)[runs.document]))
    if "cluster" in traits:
        pure = np.diff(runs.mix(np.asarray(traits["cluster"])[runs.document]).indptr) == 1
        yield Feature("sequences of one cluster", "occurrences", csr_matrix(pure[:, np.newaxis].astype(int)))
    long = runs.held(LONG)
    if long.shape[1]:
        yield Feature("parts of long documents", "occurrences", long, inside=True)
