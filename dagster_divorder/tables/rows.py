"""The rows of a table as items to order.

Letters: N rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.traits import ManyCodes
from dagster_divorder.core.packing.coordinates import VECTOR_SHARE, with_blocks
from dagster_divorder.tables.table import Table, open_table
from dagster_divorder.tables.tokens import Tokens, row_tokens, warn
from dagster_divorder.tables.traits import By, TraitCodes, VectorCodes, trait_of, weights_of

BINS = 16
"""Quantile bins of a column of numbers."""
CLUSTERS = 30
"""Clusters of a column of vectors."""


@dataclass(frozen=True, eq=False)
class Rows:
    """tokens: int64 (N,), of each row. weights, traits: by name, of the balanced columns."""

    table: Table
    tokens: NDArray[np.int64]
    weights: dict[str, float]
    traits: dict[str, TraitCodes]

    def items(self, within: float) -> Items:
        """One item a row; see `core.order.items.document_items`."""
        codes = {
            name: trait if isinstance(trait, ManyCodes) else trait.codes
            for name, trait in self.traits.items()
        }
        items = document_items(self.tokens, codes, self.weights, within=within)
        heaviest = max(self.weights.values())
        blocks = [
            (trait.directions, VECTOR_SHARE * self.weights[name] / heaviest)
            for name, trait in self.traits.items()
            if isinstance(trait, VectorCodes)
        ]
        return with_blocks(items, blocks) if blocks else items


def read_rows(table: Any, by: By, tokens: Tokens, *, bins: int, clusters: int, seed: int) -> Rows:
    """The rows of any table; arguments and errors as in `tables.ordering.order`."""
    for name, value, smallest in (("bins", bins, 1), ("clusters", clusters, 1), ("seed", seed, 0)):
        whole_number(name, value, smallest)
    opened, weights = open_table(table), weights_of(by)
    traits = {name: trait_of(opened, name, bins=bins, clusters=clusters, seed=seed) for name in weights}
    for name, trait in traits.items():
        values = trait.directions if isinstance(trait, VectorCodes) else trait.codes
        if opened.rows > 1 and (values == values[0]).all():
            warn(
                f"column {name!r} has the same value in all rows, so it balances nothing; leave it out of by"
            )
    return Rows(opened, row_tokens(opened, tokens, weights), weights, traits)
