"""A table's rows in an order in which every window carries the table's own mix of the named columns.

Letters: N rows, V dims.

Guarantee: the same values and seed give the same order, whatever the kind of the table.
Cost: as `core.order`, linear in N for `balanced`; benchmarks/ordering/tables.py measures it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.order.items import TABLE_WITHIN
from dagster_divorder.tables.sections import BINS, CLUSTERS, TableOrder, order_table, read_rows
from dagster_divorder.tables.table import open_table
from dagster_divorder.tables.tokens import Tokens
from dagster_divorder.tables.traits import By

AnyTable = TypeVar("AnyTable")


def order(
    table: Any,
    by: By,
    *,
    tokens: Tokens = None,
    strategy: str = "balanced",
    seed: int = 0,
    frozen: ArrayLike | None = None,
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
    tokens: the length of rows, since mixes are shares of tokens: the name of a column of whole numbers, or a function
        from a row's text to its number of tokens. By default a row is as long as its text or conversation has
        characters, or all rows are equally long if no column holds text; a warning says which. The text is the column
        of strings outside `by` with the most characters.
    strategy: a name in docs/sections.md. options: the strategy's own, and `batch` and `sequence_length` for
        strategies that read them. seed: 0 or more, of every random choice.
    frozen: int (F,), rows that are already consumed, in order. The result begins with them; the others follow at their
        own mix.
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
    more = {"strategy": strategy, "frozen": frozen, "within": within, **options}
    made = table_epochs(table, by, tokens=tokens, seed=seed, bins=bins, clusters=clusters, **more)
    return made.first


def table_epochs(
    table: Any,
    by: By,
    *,
    tokens: Tokens = None,
    seed: int = 0,
    bins: int = BINS,
    clusters: int = CLUSTERS,
    **options: Any,
) -> TableOrder:
    """The orders of all epochs. The first, the arguments and the errors are those of `order`."""
    rows = read_rows(table, by, tokens, bins=bins, clusters=clusters, seed=seed)
    return order_table(rows, seed=seed, **options)


def reorder(table: AnyTable, by: By, **arguments: Any) -> AnyTable:
    """The rows of a table in their `order`, as a table of the same kind.

    A `Dataset` comes from `select`, which copies nothing; a DataFrame keeps its index. Arguments and errors are those
    of `order`.

    >>> reorder([{"topic": "sea", "id": 1}], by="topic", tokens="id")
    [{'topic': 'sea', 'id': 1}]
    """
    opened = open_table(table)
    return opened.take(order(opened, by, **arguments))
