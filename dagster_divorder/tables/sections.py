"""The rows of a table as items to order, and their order as sections: rows that are already consumed, then the
others.

Letters: N rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import whole_number, whole_numbers
from dagster_divorder.core.order.epochs import Epochs, plan_epochs
from dagster_divorder.core.order.items import TABLE_WITHIN, Items, document_items
from dagster_divorder.core.order.traits import ManyCodes
from dagster_divorder.core.packing.coordinates import VECTOR_SHARE, with_blocks
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import Table, open_table
from dagster_divorder.tables.tokens import Tokens, row_tokens, warn
from dagster_divorder.tables.traits import By, TraitCodes, VectorCodes, trait_of, weights_of

Ints = NDArray[np.int64]

BINS = 16
"""Quantile bins of a column of numbers."""
CLUSTERS = 30
"""Clusters of a column of vectors."""
BATCH = 256
"""Rows of a batch, as in `core.order.order`."""


REMOVED = {
    "unit": "windows hold rows",
    "targets": "order the rows of each phase alone, and put the orders one after another (docs/sections.md)",
    **dict.fromkeys(
        ("score", "shape"),
        "order the rows of each window of the score alone, and put the orders one after another; the pipeline follows "
        "curriculum.score",
    ),
}
"""Removed arguments, and what to do instead. Kept for this release only."""


class Rows(NamedTuple):
    """tokens: int64 (N,), of each row. weights, traits: by name, of the balanced columns."""

    table: Table
    tokens: Ints
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


class Section(NamedTuple):
    """rows: int64 (n,), of the table. epochs: their orders."""

    rows: Ints
    epochs: Epochs


class TableOrder(NamedTuple):
    """The order of a table's rows, section by section in every epoch; consumed rows are the first section."""

    sections: list[Section]

    @property
    def first(self) -> Ints:
        """The rows of the first epoch, int64 (N,)."""
        return self.order(0)

    def order(self, epoch: int) -> Ints:
        """The rows of an epoch, counted from 0, int64 (N,)."""
        return np.concatenate([section.rows[section.epochs.order(epoch)] for section in self.sections])

    @property
    def stretch(self) -> Ints:
        """The section of each place of an epoch, int64 (N,)."""
        return np.repeat(np.arange(len(self.sections)), [len(section.rows) for section in self.sections])


def order_table(
    rows: Rows,
    *,
    strategy: str = "balanced",
    seed: int = 0,
    frozen: ArrayLike | None = None,
    within: float = TABLE_WITHIN,
    **options: Any,
) -> TableOrder:
    """The order of a table's rows; arguments and errors as in `tables.ordering.order`."""
    for name, instead in REMOVED.items():
        if name in options:
            raise InputError(f"{name} is no longer an argument of an order: {instead}")
    whole_number("batch", options.get("batch", BATCH), 1)
    items, consumed = rows.items(within), _frozen_rows(frozen, rows.table.rows)
    left, sections, more = np.arange(rows.table.rows), [], {"strategy": strategy, **options}
    if len(consumed):
        left, first = np.setdiff1d(left, consumed), np.arange(len(consumed))
        read = plan_epochs(items.take(consumed), seed=seed, first=first, **more)
        sections, items = [Section(consumed, read)], items.take(left)
    return TableOrder([*sections, Section(left, plan_epochs(items, seed=seed, **more))])


def _frozen_rows(frozen: ArrayLike | None, rows: int) -> Ints:
    """`frozen` as int64 (F,): rows in [0, N), each once."""
    array = whole_numbers("frozen", [] if frozen is None else frozen, least=None).astype(np.int64)
    if array.min(initial=0) < 0 or array.max(initial=-1) >= rows:
        wrong = array.min() if array.min() < 0 else array.max()
        raise InputError(f"frozen names row {wrong}; there are {rows}, counted from 0")
    values, times = np.unique(array, return_counts=True)
    if (times > 1).any():
        raise InputError(f"frozen names row {values[times > 1][0]} twice; a row is consumed once")
    return array
