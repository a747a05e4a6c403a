"""What each training sequence is made of: features whose stationarity is looked at, from the plan and the traits alone.

Letters: S sequences, Q runs of tokens in them, N documents, U documents that the sequences hold, J trait values.
Cost: O(Q log Q).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.measure.packed import ReadRuns, sequences_stream
from dagster_divorder.core.measure.stationarity import TENTHS, Feature, distances_from_whole
from dagster_divorder.core.packing import PackedSequences

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Ints = NDArray[np.int64]

DOCUMENTS = "documents a sequence"
LONG = TENTHS
"""A document in so many of the sequences is a long one, whose parts are to be spread over the tenths."""


class SequenceRuns(ReadRuns):
    """Some sequences in an order, and the runs of tokens in them, all of one token or more."""

    @classmethod
    def of(cls, packed: PackedSequences, order: ArrayLike, tokens: ArrayLike) -> SequenceRuns:
        """The sequences of `order`, int (S,), in that order, without the tokens that a document (N,) has not of its
        own: end-of-text tokens."""
        read = sequences_stream(packed, order)
        length = np.minimum(read.length, np.asarray(tokens, np.int64)[read.document] - read.start)
        # An end-of-text token may be alone in its sequence.
        own = length > 0
        kept = np.concatenate([[0], np.cumsum(own)])
        return cls(read.document[own], read.start[own], length[own], kept[read.indptr])

    def __len__(self) -> int:
        """S."""
        return len(self.indptr) - 1

    @cached_property
    def sequence(self) -> Ints:
        """Of each run, int64 (Q,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    @cached_property
    def tokens(self) -> NDArray[np.float64]:
        """Of each sequence, (S,), at least 1."""
        return np.maximum(np.bincount(self.sequence, self.length, len(self)), 1.0)

    @cached_property
    def documents(self) -> tuple[Ints, Ints]:
        """(documents (U,), which of them each run is of, (Q,))."""
        return np.unique(self.document, return_inverse=True)

    def mix(self, codes: NDArray[np.integer]) -> csr_matrix:
        """Tokens by value of each sequence, CSR int64 (S, J); codes int (Q,) by run."""
        return self._counts(codes, self.length)

    def held(self, fewest: int) -> csr_matrix:
        """Which sequences hold parts of each document that is in at least `fewest` of them, CSR (S, G), entries 1."""
        _, which = self.documents
        occurrences = self._counts(which, np.ones(len(which), np.int64))
        occurrences.data[:] = 1
        return occurrences[:, np.bincount(occurrences.indices, minlength=occurrences.shape[1]) >= fewest]

    def per_token(self, values: NDArray[np.number]) -> NDArray[np.float64]:
        """Mean of a number of the runs, (Q,), over the tokens of each sequence, (S,)."""
        return np.asarray(np.bincount(self.sequence, self.length * values, len(self)) / self.tokens)

    def _counts(self, codes: NDArray[np.integer], counts: Ints) -> csr_matrix:
        from scipy.sparse import csr_matrix

        # Making it of (row, column) pairs adds up those that are equal.
        shape = (len(self), int(codes.max(initial=0)) + 1)
        return csr_matrix((counts, (self.sequence, codes)), shape=shape)


def sequence_features(
    runs: SequenceRuns, traits: Mapping[str, ArrayLike], tokens: ArrayLike, balanced: Collection[str]
) -> Iterator[Feature]:
    """Features of the sequences, as they stand in `runs`.

    traits: name -> int codes (N,), among them perhaps "cluster". tokens: int (N,), of each document. balanced: names of
    the features that the order saw.
    """
    from scipy.sparse import csr_matrix

    for trait, codes in traits.items():
        mix = runs.mix(np.asarray(codes)[runs.document])
        yield Feature(trait, "mix", mix, seen=trait in balanced)
        if trait == "cluster":
            yield Feature("distance of the cluster mix", "number", distances_from_whole(mix))
            single = np.diff(mix.indptr) == 1
            yield Feature(
                "sequences of one cluster", "occurrences", csr_matrix(single[:, np.newaxis].astype(int))
            )
    documents = np.diff(runs.held(1).indptr)
    yield Feature(DOCUMENTS, "number", documents, seen=DOCUMENTS in balanced)
    lengths = np.log1p(np.asarray(tokens)[runs.document])
    yield Feature("length of documents", "number", runs.per_token(lengths))
    yield Feature("place in the input", "number", runs.per_token(runs.document))
    long = runs.held(LONG)
    if long.shape[1]:
        yield Feature("parts of long documents", "occurrences", long)
    yield Feature("neighbours of one document", "neighbours", runs.held(2))
