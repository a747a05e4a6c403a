"""The rows of a table as items to order.

Letters: N rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.order import Targets
from dagster_divorder.core.order.arguments import make_task
from dagster_divorder.core.order.coordinates import VECTOR_SHARE, with_blocks
from dagster_divorder.core.order.epochs import Epochs, plan_epochs
from dagster_divorder.core.order.items import TABLE_WITHIN, Items, document_items
from dagster_divorder.core.order.target_tables import Tables, check_tables
from dagster_divorder.core.order.trait_targets import document_targets
from dagster_divorder.core.order.traits import Codes, ManyCodes, Traits
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import Table, open_table
from dagster_divorder.tables.tokens import Tokens, row_tokens
from dagster_divorder.tables.traits import By, VectorCodes, trait_of, weights_of

BINS = 16
"""Quantile bins of a column of numbers."""
CLUSTERS = 30
"""Of a column of vectors."""


@dataclass(frozen=True, eq=False)
class Rows:
    """tokens: int64 (N,). weights: of the columns that are balanced; traits: their codes."""

    table: Table
    tokens: NDArray[np.int64]
    weights: dict[str, float]
    traits: dict[str, Codes | ManyCodes]

    def items(self, within: float) -> Items:
        """One item a row; see `core.order.items.document_items`."""
        codes = {name: of if isinstance(of, ManyCodes) else of.codes for name, of in self.traits.items()}
        items = document_items(self.tokens, codes, self.weights, within=within)
        heaviest = max(self.weights.values())
        blocks = [
            (of.directions, VECTOR_SHARE * self.weights[name] / heaviest)
            for name, of in self.traits.items()
            if isinstance(of, VectorCodes)
        ]
        return with_blocks(items, blocks) if blocks else items

    def targets(self, tables: Tables | None, items: Items) -> Targets | None:
        """A mix that moves, as `core.order.trait_targets.document_targets` makes it of the shares of some values of
        columns.

        Raises:
            InputError: a table of shares cannot be used, or is of a column of lists.
        """
        if not tables:
            return None
        asked = {
            trait: {value: tuple(map(float, column)) for value, column in table.items()}
            for trait, table in tables.items()
        }
        check_tables(asked, self.traits)
        single = {name: of for name, of in self.traits.items() if isinstance(of, Codes)}
        if lists := sorted(asked.keys() - single.keys()):
            raise InputError(
                f"targets names {lists[0]!r}, a column of lists; expected columns of one value a row"
            )
        traits = Traits(
            self.tokens,
            {name: of.codes for name, of in single.items()},
            {name: of.names for name, of in single.items()},
        )
        return document_targets(asked, traits, list(self.traits), items)


def read_rows(table: Any, by: By, tokens: Tokens, *, bins: int, clusters: int, seed: int) -> Rows:
    """The rows of any table; arguments as `order` has them.

    Raises:
        InputError: an argument cannot be used.
    """
    for name, value, smallest in (("bins", bins, 1), ("clusters", clusters, 1), ("seed", seed, 0)):
        whole_number(name, value, smallest)
    opened, weights = open_table(table), weights_of(by)
    traits = {name: trait_of(opened, name, bins=bins, clusters=clusters, seed=seed) for name in weights}
    return Rows(opened, row_tokens(opened, tokens, weights), weights, traits)


def order_rows(rows: Rows, **options: Any) -> NDArray[np.int64]:
    """Order of the rows, int64 (N,): position -> row. Options and errors as `tables.ordering.order` has them."""
    # The items are no more than the task's own rows need, and go before it is ordered.
    return make_task(**_arguments(rows, **options)).order()


def row_epochs(rows: Rows, **options: Any) -> Epochs:
    """The same for every epoch; the first has the order of `order_rows`."""
    return plan_epochs(**_arguments(rows, **options))


def _arguments(
    rows: Rows, *, within: float = TABLE_WITHIN, targets: Tables | None = None, **options: Any
) -> dict[str, Any]:
    items = rows.items(within)
    return {
        "counts": items.counts,
        "groups": items.groups,
        "weights": items.weights,
        "coordinates": items.coordinates,
        "targets": rows.targets(targets, items),
        **options,
    }
