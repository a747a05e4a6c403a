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
from dagster_divorder.errors import InputError
from dagster_divorder.tables.rows import BINS, CLUSTERS, read_rows
from dagster_divorder.tables.sections import TableOrder, order_table
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
    score: str | ArrayLike | None = None,
    shape: str = "rise",
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
    score: what a curriculum follows: a column of numbers, or numbers (N,). Rows without a score are spread evenly, with
        a warning. The schedule decides which rows a window holds; `strategy` orders them, so that every window keeps
        its own mix.
    shape: of the schedule: rise, fall, fold or zigzag (docs/sections.md). A window is a 32nd of
        the table, within 4 to 64 batches, and at most an eighth of the table or a quarter of the ranks.
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
    rows = read_rows(table, by, tokens, bins=bins, clusters=clusters, seed=seed)
    return order_table(
        rows,
        strategy=strategy,
        seed=seed,
        frozen=frozen,
        score=score,
        shape=shape,
        within=within,
        **_known(options),
    ).first


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """
    Raises:
        InputError: an option was removed.
    """
    for name, instead in REMOVED.items():
        if name in options:
            raise InputError(f"{name} is no longer an argument of an order: {instead}")
    return options


REMOVED = {
    "targets": "order the rows of each phase alone, and put the orders one after another (docs/sections.md)",
    "strength": "give rows that shall not follow the score none (NaN); they are spread evenly",
    "keep": "rank the scores inside each value yourself, and give the ranks as the score",
    "points": "give as the score the share of training after which a row shall come",
    "score_window": "a window is a 32nd of the table, within 4 to 64 batches",
}
"""Removed arguments of 0.2, and what to do instead. Kept for this release only."""


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
    return order_table(rows, seed=seed, **_known(options))


def reorder(table: AnyTable, by: By, **arguments: Any) -> AnyTable:
    """The rows of a table in their `order`, as a table of the same kind.

    A `Dataset` comes from `select`, which copies nothing; a DataFrame keeps its index. Arguments and errors are those
    of `order`.

    >>> reorder([{"topic": "sea", "id": 1}], by="topic", tokens="id")
    [{'topic': 'sea', 'id': 1}]
    """
    opened = open_table(table)
    return opened.take(order(opened, by, **arguments))
