"""A table's rows in an order in which every window carries the table's own mix of the named columns.

Letters: N rows, V dims.

Guarantee: the same values and seed give the same order, whatever the kind of the table.
Cost: as `core.order`, linear in N for `balanced`; benchmarks/ordering/tables.py measures it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.order.epochs import Epochs, plan_epochs
from dagster_divorder.core.order.items import TABLE_WITHIN, Items, document_items
from dagster_divorder.core.order.traits import ManyCodes
from dagster_divorder.core.packing.coordinates import VECTOR_SHARE, with_blocks
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import Table, open_table
from dagster_divorder.tables.tokens import Tokens, row_tokens, warn
from dagster_divorder.tables.traits import By, TraitCodes, VectorCodes, trait_of, weights_of

AnyTable = TypeVar("AnyTable")
Ints = NDArray[np.int64]

BINS = 16
"""Quantile bins of a column of numbers."""
CLUSTERS = 30
"""Clusters of a column of vectors."""
BATCH = 256
"""Rows of a batch, as in `core.order.order`."""

REMOVED = {
    "unit": "windows hold rows",
    "frozen": "order the rows that are left, and put them behind those that were read (docs/tables.md)",
    "targets": "order the rows of each phase alone, and put the orders one after another (docs/sections.md)",
    **dict.fromkeys(
        ("score", "shape"),
        "order the rows of each window of the score alone, and put the orders one after another; the pipeline follows "
        "curriculum.score",
    ),
}
"""Removed arguments, and what to do instead. Kept for this release only."""


def order(
    table: Any,
    by: By,
    *,
    tokens: Tokens = None,
    strategy: str = "balanced",
    seed: int = 0,
    within: float = TABLE_WITHIN,
    bins: int = BINS,
    clusters: int = CLUSTERS,
    **options: Any,
) -> NDArray[np.int64]:
    """Order of a table's N rows, int64 (N,): position -> row.

    table: a pandas or polars DataFrame, a pyarrow Table, a `datasets.Dataset`, a dict of columns, a list of dicts, or
        anything with `__arrow_c_stream__`.
    by: the columns whose mix every window carries: a column, a list of columns, or a mapping of columns to weights
        (numbers from 1e-6 to 1e6). docs/tables.md lists the column types. A dot names a field of a
        struct: "meta.source".
    tokens: the length of rows, since mixes are shares of tokens: the name of a column of whole numbers. By default a
        row is as long as its text or conversation has characters, or all rows are equally long if no column holds
        text; a warning says which. The text is the column of strings outside `by` with the most characters.
    strategy: a name in docs/sections.md. options: the strategy's own, and `batch` for those that read it.
    seed: 0 or more, of every random choice.
    within: what windows are for, from 0, batches of rows, to 1, sequences into which rows are packed in this order.
    bins: quantile bins of a column of numbers. clusters: clusters of a column of vectors.

    Raises:
        InputError: an argument cannot be used; the message names it and says what was expected.

    >>> table = {"topic": ["sea"] * 3 + ["rail"] * 3, "tokens": [5, 5, 5, 5, 5, 5]}
    >>> ranks = order(table, "topic", tokens="tokens")
    >>> sorted(ranks.tolist())
    [0, 1, 2, 3, 4, 5]
    >>> [sorted(table["topic"][row] for row in ranks[at : at + 2]) for at in (0, 2, 4)]
    [['rail', 'sea'], ['rail', 'sea'], ['rail', 'sea']]
    """
    more = {"strategy": strategy, "within": within, **options}
    _, epochs = table_epochs(table, by, tokens=tokens, seed=seed, bins=bins, clusters=clusters, **more)
    return epochs.first


def table_epochs(
    table: Any,
    by: By,
    *,
    tokens: Tokens = None,
    strategy: str = "balanced",
    seed: int = 0,
    within: float = TABLE_WITHIN,
    bins: int = BINS,
    clusters: int = CLUSTERS,
    **options: Any,
) -> tuple[Rows, Epochs]:
    """The rows of a table, and the orders of all epochs. The first, the arguments and the errors are those of
    `order`."""
    for name, value, smallest in (("bins", bins, 1), ("clusters", clusters, 1), ("seed", seed, 0)):
        whole_number(name, value, smallest)
    for name, instead in REMOVED.items():
        if name in options:
            raise InputError(f"{name} is no longer an argument of an order: {instead}")
    whole_number("batch", options.get("batch", BATCH), 1)
    opened, weights = open_table(table), weights_of(by)
    traits = {name: trait_of(opened, name, bins=bins, clusters=clusters, seed=seed) for name in weights}
    for name, trait in traits.items():
        values = trait.directions if isinstance(trait, VectorCodes) else trait.codes
        if opened.rows > 1 and (values == values[0]).all():
            warn(
                f"column {name!r} has the same value in all rows, so it balances nothing; leave it out of by"
            )
    rows = Rows(opened, row_tokens(opened, tokens, weights), weights, traits)
    return rows, plan_epochs(rows.items(within), strategy=strategy, seed=seed, **options)


def reorder(table: AnyTable, by: By, **arguments: Any) -> AnyTable:
    """The rows of a table in their `order`, as a table of the same kind.

    A `Dataset` comes from `select`, which copies nothing; a DataFrame keeps its index. Arguments and errors are those
    of `order`.

    >>> reorder([{"topic": "sea", "id": 1}], by="topic", tokens="id")
    [{'topic': 'sea', 'id': 1}]
    """
    opened = open_table(table)
    return opened.take(order(opened, by, **arguments))


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
