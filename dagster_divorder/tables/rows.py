"""The rows of a table as items to order.

Letters: N rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.order import Targets
from dagster_divorder.core.order.arguments import make_task
from dagster_divorder.core.order.coordinates import VECTOR_SHARE, with_blocks
from dagster_divorder.core.order.items import TABLE_WITHIN, Items, document_items
from dagster_divorder.core.order.strategies import check_follows_targets
from dagster_divorder.core.order.target_tables import Tables, check_tables
from dagster_divorder.core.order.trait_targets import document_targets
from dagster_divorder.core.order.traits import Codes, ManyCodes, Traits
from dagster_divorder.errors import InputError
from dagster_divorder.tables.schedule import Schedule
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

    def targets(self, tables: Tables | None, items: Items) -> Targets | None:
        """A mix that moves, for `items`. tables: as in `order` (`core.order.trait_targets.document_targets`).

        Raises:
            InputError: a table of shares cannot be used, or names a column of lists.
        """
        try:
            if not tables:
                return None
            tables = {
                name: {_name_of(value): tuple(map(float, shares)) for value, shares in table.items()}
                for name, table in tables.items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(
                f'targets is {tables!r}; expected {{column: {{"progress": [0, 1], value: [0.9, 0.1], ...}}, ...}}, all '
                "in numbers"
            ) from error
        check_tables(tables, self.traits)
        single = {name: trait for name, trait in self.traits.items() if isinstance(trait, Codes)}
        if lists := sorted(tables.keys() - single.keys()):
            raise InputError(
                f"targets names {lists[0]!r}, a column of lists; expected columns of one value a row"
            )
        traits = Traits(
            self.tokens,
            {name: trait.codes for name, trait in single.items()},
            {name: trait.names for name, trait in single.items()},
        )
        return document_targets(tables, traits, list(self.traits), items)


def _name_of(value: Any) -> Any:
    """The name of a value in `targets`: 0 and True are "0" and "true", as categories have them."""
    return str(value).lower() if isinstance(value, int | np.integer | np.bool_) else value


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


def order_rows(rows: Rows, **options: Any) -> NDArray[np.int64]:
    """Order of the rows, int64 (N,): position -> row. Options and errors as in `tables.ordering.order`."""
    # The task keeps only its own rows; this frees the items before it orders them.
    return make_task(**order_arguments(rows, **options)).order()


def order_arguments(
    rows: Rows,
    *,
    strategy: str = "balanced",
    within: float = TABLE_WITHIN,
    targets: Tables | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Arguments of `core.order.order`."""
    names = {field.name for field in fields(Schedule)}
    schedule = Schedule(**{name: options.pop(name) for name in names & options.keys()})
    if targets and schedule.score is not None:
        raise InputError("score and targets are given; an order follows one of them: remove the other")
    items = rows.items(within)
    moving = rows.targets(targets, items)
    if targets:
        check_follows_targets("strategy", strategy, targets, next(iter(rows.traits)))
    return {
        "counts": items.counts,
        "groups": items.groups,
        "weights": items.weights,
        "coordinates": items.coordinates,
        "targets": moving,
        **schedule.arguments(rows, strategy, options),
    }
