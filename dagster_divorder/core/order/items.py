"""Documents as items to order: each trait enters in tokens and in documents.

Letters: N documents, J trait values, G groups.

Real documents are heavy-tailed. Balanced in tokens alone, the order clumps long documents, and sequences hold few
values. Balanced in documents alone, batches stray further than under a shuffle. So every trait makes two groups, its
tokens and its documents; a document counts as much as the mean length. One more group counts documents in coarse bins
of length: an order does not know that neighbours among a hundred fine bins are alike.

If windows of whole documents count (`within` below 1), documents weigh less, and every trait makes a third group, in
square roots of tokens: the longest documents dominate tokens, and no order evens those out.

Guarantee: integer counts, exact to 2**62 tokens. Group 0 is the first trait in tokens. A document without tokens has a
stored 0 there, which keeps its label.
Cost: O(N (traits + log N)) time; 8 bytes an entry, 16 if a document exceeds 2**31 tokens. No loop over documents.
Source: measurements in docs/decisions/ordering.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.order.traits import ManyCodes, bin_codes, quantile_edges
from dagster_divorder.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DOCUMENT_WEIGHT = 300.0
"""Weight of a trait in documents over its weight in tokens. With more, sequences hold more values, and prefixes and
batches stray further in tokens."""
BATCH_DOCUMENT_WEIGHT = 4.0
"""The same weight for `within` = 0, divided by the design effect of the lengths; the weight is at most
`DOCUMENT_WEIGHT`. At 1 a document weighs as much as its tokens do in the mean square."""
LEAST_ROOT = 0.01
"""Weight of a trait in square roots of tokens over its weight in documents, just below `within` = 1. It rises to 1 at
`within` = 0 on a logarithmic scale, so that the effect of `within` changes evenly."""
LEAST_WEIGHT = 1e-6
"""Least weight of a trait, so that weighted squares of totals stay far inside float64 and none vanishes."""
TABLE_WITHIN = 0.0
"""`within` of a table whose records are not packed: there, batches of records count."""
COARSE_LENGTH_BINS = 16
"""Quantile bins of coarse length, about as many as a sequence has documents."""


@dataclass(frozen=True, eq=False)
class Items:
    """Items to order. counts: CSR (N, J), item x trait value, finite and >= 0, in tokens or documents; stored zeros are
    kept. groups: int32 (J,), the group 0..G-1 of each trait value, none empty. Each group has its own running total, so
    one may count tokens and another documents. weights: float64 (G,), > 0, the importance of each group, in squared
    units of its counts.
    coordinates: float32 (N, D), signed numbers, such as an item's mean vector times its tokens; or None. Every prefix
    should have its share of their sum, by token. A coordinate counts like a trait value of weight 1, in the unit of
    `counts`; scale it to change its weight. For strategies with `takes_coordinates`."""

    counts: csr_matrix
    groups: NDArray[np.int32]
    weights: NDArray[np.float64]
    coordinates: NDArray[np.float32] | None = None

    def take(self, items: NDArray[np.integer] | slice) -> Items:
        """These items alone."""
        kept = None if self.coordinates is None else self.coordinates[items]
        return replace(self, counts=self.counts[items], coordinates=kept)

    def part(self, begin: int, end: int) -> Items:
        """Items [begin, end)."""
        return self if (begin, end) == (0, self.counts.shape[0]) else self.take(slice(begin, end))


def document_items(
    tokens: ArrayLike,
    traits: Mapping[str, ArrayLike | ManyCodes],
    weights: Mapping[str, float] | None = None,
    *,
    within: float = 1.0,
    lengths: ArrayLike | None = None,
) -> Items:
    """Items whose order balances every trait.

    tokens: int (N,), >= 0, the tokens of each document that shares count. traits: name -> int codes (N,), >= 0; the
    first trait gives the label. Several values of one document share its tokens.
    weights: name -> number from LEAST_WEIGHT to its inverse, for every trait; equal by default.
    within: 0 keeps windows of whole documents near the mix, 1 puts more values into packed sequences.
    lengths: int (N,), all tokens of each document, for the coarse bins of length; `tokens` by default.

    Raises:
        InputError: a weight is out of range, or `within` is no number from 0 to 1.
    """
    from scipy.sparse import csr_matrix, hstack

    sizes = np.asarray(tokens)
    columns = [values if isinstance(values, ManyCodes) else np.asarray(values) for values in traits.values()]
    every_weight = dict.fromkeys(traits, 1.0) if weights is None else {name: weights[name] for name in traits}
    for name, given in every_weight.items():
        if not LEAST_WEIGHT <= given <= 1 / LEAST_WEIGHT:
            raise InputError(
                f"the weight of trait {name!r} is {given}; expected a number from {LEAST_WEIGHT:g} to "
                f"{1 / LEAST_WEIGHT:g}: leave the trait out to ignore it"
            )
    weight = np.array([*every_weight.values()], np.float64)
    if isinstance(within, bool) or not isinstance(within, Real) or not 0.0 <= within <= 1.0:
        raise InputError(
            f"within is {within!r}; expected a number from 0 (batches of records) to 1 (more values in a sequence): "
            "leave it out where sequences are packed"
        )
    least = min(1.0, BATCH_DOCUMENT_WEIGHT * design_effect(sizes) / DOCUMENT_WEIGHT)
    document_weight = DOCUMENT_WEIGHT * least ** (1.0 - float(within))
    every = sizes if lengths is None else np.asarray(lengths)
    unit = max(1, round(int(sizes.sum()) / max(1, len(sizes))))
    dtype = np.int32 if max(unit, sizes.max(initial=0)) <= np.iinfo(np.int32).max else np.int64
    units = np.full(len(sizes), unit, dtype)
    roots = columns if within < 1.0 else []
    coarse = bin_codes(every, quantile_edges(every, COARSE_LENGTH_BINS))
    square_roots = np.rint(np.sqrt(sizes * np.float64(unit))).astype(dtype)
    groups = [(column, sizes.astype(dtype)) for column in columns]
    groups += [(column, units) for column in [*columns, coarse]]
    groups += [(column, square_roots) for column in roots]
    blocks = []
    for column, amounts in groups:
        if isinstance(column, ManyCodes):
            entries = column.shared(amounts), column.codes.copy(), column.indptr
        else:
            entries = amounts, column, np.arange(len(sizes) + 1)
        block: csr_matrix = csr_matrix(entries, shape=(len(sizes), int(entries[1].max(initial=0)) + 1))
        # A list may repeat values and may have any order.
        block.sum_duplicates()
        blocks.append(block)
    counts: csr_matrix = hstack(blocks, format="csr", dtype=dtype)
    return Items(
        counts=counts,
        groups=np.repeat(np.arange(len(blocks), dtype=np.int32), [block.shape[1] for block in blocks]),
        weights=np.concatenate(
            [
                weight,
                document_weight * weight,
                [document_weight * weight.max()],
                LEAST_ROOT ** float(within) * document_weight * weight[: len(roots)],
            ]
        ),
    )


def design_effect(sizes: NDArray[Any]) -> float:
    """Kish's design effect of lengths (N,), N sum l^2 / (sum l)^2: 1 if all are equal, or have no tokens."""
    lengths = sizes.astype(np.float64)
    return len(lengths) * float(lengths @ lengths) / (float(lengths.sum()) ** 2 or 1.0) or 1.0
