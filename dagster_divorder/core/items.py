"""Documents as items to order: each trait enters in tokens and in documents.

Letters: N documents, J trait values, G groups.

Real documents are heavy-tailed. Balanced in tokens alone, the order serves long documents and clumps them:
sequences hold few topics. Balanced in documents alone, batches stray further than under a shuffle. So every trait
makes two groups, its tokens and its documents, the latter counted in units of the mean length. One more group
counts documents in coarse bins of length: of a hundred fine bins the order cannot know that neighbours are alike, and
would still fill one sequence with short documents and the next with long ones.

Guarantee: integer counts, exact to 2**62 tokens; group 0 is the first trait in tokens, with a stored 0 for a document
without tokens, so that it keeps its label.
Cost: O(N (traits + log N)) time; 8 bytes an entry, 16 if a document exceeds 2**31 tokens. No loop over documents.
Source: the measurements in docs/decisions/ordering-documents.md.
Known weakness: the weight is a compromise, see there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import whole_numbers
from dagster_divorder.core.traits import ManyCodes, bin_codes, quantile_edges
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DOCUMENT_WEIGHT = 300.0
"""Weight of a trait in documents over its weight in tokens: sequences hold more topics as it rises, and prefixes and
batches stray further in tokens. Mixture corpus, 100 length bins: 1 gives 9.63 clusters a sequence, 30 10.94, 100 11.21,
300 11.36, 1000 11.42; mean prefix deviation 81,000, 85,000, 90,000, 98,000, 106,000 tokens."""

COARSE_LENGTH_BINS = 16
"""Quantile bins of the group of coarse lengths, about as many as a sequence has documents. The same corpus: without it
10.99 clusters a sequence, with 4 11.17, 8 11.29, 16 11.36, 32 11.20."""


@dataclass(frozen=True, eq=False)
class Items:
    """Arguments of `core.order.order`: counts CSR (N, J), int32 or int64; groups int32 (J,); weights float64 (G,);
    coordinates float32 (N, D), or None."""

    counts: csr_matrix
    groups: NDArray[np.int32]
    weights: NDArray[np.float64]
    coordinates: NDArray[np.float32] | None = None

    def part(self, begin: int, end: int) -> Items:
        """The items [begin, end) alone."""
        if (begin, end) == (0, self.counts.shape[0]):
            return self
        kept = None if self.coordinates is None else self.coordinates[begin:end]
        return replace(self, counts=self.counts[begin:end], coordinates=kept)


def document_items(
    tokens: ArrayLike,
    traits: Mapping[str, ArrayLike | ManyCodes],
    weights: Mapping[str, float] | None = None,
) -> Items:
    """Items whose order balances every trait.

    tokens: int (N,), >= 0, tokens of each document. traits: name -> int codes (N,), >= 0; the first one gives the label
    to strategies that take one. Of a trait with several values a document, its tokens are shared among them.
    weights: name -> number above 0, for every trait; equal by default.

    Raises:
        InputError: shapes differ, a number is negative, no trait is given, or weights name other traits.
    """
    from scipy.sparse import csr_matrix

    sizes = whole_numbers("tokens", tokens, each="document")
    columns = [_values_of(name, values, len(sizes)) for name, values in traits.items()]
    if not columns:
        raise InputError("traits is empty; expected at least one trait, such as the cluster of each document")
    weight = _trait_weights(list(traits), weights)
    columns += columns
    columns.append(_one_each(bin_codes(sizes, quantile_edges(sizes, COARSE_LENGTH_BINS))))
    n_values = [int(column.codes.max(initial=0)) + 1 for column in columns]
    starts = np.cumsum([0, *n_values])

    unit = max(1, round(int(sizes.sum()) / max(1, len(sizes))))
    dtype = np.int32 if max(unit, sizes.max(initial=0)) <= np.iinfo(np.int32).max else np.int64
    indptr = np.stack([column.indptr for column in columns]).sum(axis=0, dtype=np.int64)
    indices = np.empty(indptr[-1], np.int32)
    data = np.empty(indptr[-1], dtype)
    free = indptr[:-1]
    for group, column in enumerate(columns):
        amounts, widths = sizes if group < len(traits) else unit, np.diff(column.indptr)
        if (widths == 1).all():
            at, parts = free, amounts
        else:
            at = (free - column.indptr[:-1]).repeat(widths) + np.arange(column.indptr[-1])
            parts = column.shared(np.broadcast_to(amounts, len(sizes)))
        indices[at] = column.codes + np.int32(starts[group])
        data[at] = parts
        free = free + widths
    counts: csr_matrix = csr_matrix((data, indices, indptr), shape=(len(sizes), starts[-1]))
    # A list may name a value twice, and in any order.
    counts.sum_duplicates()
    return Items(
        counts=counts,
        groups=np.repeat(np.arange(len(columns), dtype=np.int32), n_values),
        weights=np.concatenate([weight, DOCUMENT_WEIGHT * weight, [DOCUMENT_WEIGHT * weight.max()]]),
    )


def _values_of(name: str, values: ArrayLike | ManyCodes, documents: int) -> ManyCodes:
    if isinstance(values, ManyCodes):
        return values
    return _one_each(whole_numbers(f"trait {name!r}", values, documents, each="document"))


def _one_each(codes: NDArray[Any]) -> ManyCodes:
    return ManyCodes(np.arange(len(codes) + 1), codes, ())


def _trait_weights(names: list[str], weights: Mapping[str, float] | None) -> NDArray[np.float64]:
    if weights is None:
        return np.ones(len(names))
    if set(weights) != set(names):
        raise InputError(f"weights names {sorted(weights)}; expected one for each trait: {sorted(names)}")
    for name in names:
        if not (np.isfinite(weights[name]) and weights[name] > 0):
            raise InputError(
                f"the weight of trait {name!r} is {weights[name]}; expected a number above 0: "
                "leave the trait out to ignore it"
            )
    return np.array([weights[name] for name in names], np.float64)
