"""A table's rows in an order in which every window carries the table's own mix of the named columns.

Letters: N rows, V dims.

Guarantee: the same values give the same order, whatever the kind of the table; the same seed the same bytes.
Cost: that of `core.order`, linear in N for `balanced`; benchmarks/ordering/tables.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.order.curricula import SHAPES
from dagster_divorder.core.order.epochs import Epochs, epoch_orders, plan_epochs
from dagster_divorder.core.order.items import TABLE_WITHIN
from dagster_divorder.core.order.target_tables import Tables
from dagster_divorder.tables.rows import BINS, CLUSTERS, order_arguments, order_rows, read_rows
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
    targets: Tables | None = None,
    score: str | ArrayLike | None = None,
    shape: str = "rise",
    points: ArrayLike | None = None,
    strength: float = 1.0,
    score_window: int | None = None,
    keep: str | Iterable[str] = (),
    within: float = TABLE_WITHIN,
    bins: int = BINS,
    clusters: int = CLUSTERS,
    **options: Any,
) -> NDArray[np.int64]:
    """Order of a table's N rows, int64 (N,): position -> row.

    table: a pandas or polars DataFrame, a pyarrow Table, a `datasets.Dataset`, a dict of columns, a list of dicts, or
        anything with `__arrow_c_stream__`; see `tables.table`.
    by: the columns whose mix every window carries: a column, a list of columns, or a mapping of columns to weights
        (numbers above 0, relative to each other). `tables.traits` lists the types of columns; a field of a struct is
        named with a dot: "meta.source".
    tokens: the length of rows, since mixes are shares of tokens: the name of a column of whole numbers, or a function
        from a row's text to its number of tokens. None: the characters of the text, with a warning; equal lengths if no
        column holds text. A row's text is its value in the column of strings, not among `by`, with most characters.
    strategy, seed, options: as in `core.order.order`, such as sequence_length and batch.
    frozen: rows, int (F,), that are consumed already, in their order: the result begins with them.
    targets: a mix that moves: column -> {"progress": numbers that rise from 0 to 1, value: its share of the tokens at
        each of them, ...}, for columns of one value a row; see `core.order.order` for the strategies that follow it.
    score: what a curriculum follows: a column of numbers, or numbers (N,); rows without one are spread evenly, with a
        warning. Every window then carries the mix of the rows that the schedule gives it, and `strategy` orders these.
    shape: of the schedule: rise, fall, fold, zigzag, stair, saw or segment (docs/curricula.md); their options, such as
        folds, are options here. points: a shape of your own, [(progress, rank), ...], both from 0 to 1.
    strength: the share of the tokens that follow the schedule. 0: the order without a curriculum.
    score_window: batches (`batch` rows each) in which a row may move: nearer to the mix, and farther from the schedule,
        as it rises. None: a 32nd of the table, within 4 to 64 batches, and an eighth of it or a quarter of the
        ranks at most.
    keep: columns in `by` whose shares hold throughout: scores are ranked within each of their values.
    within: the use of windows, from 0, batches of rows, to 1, sequences into which rows are packed in this order.
    bins: quantile bins of a column of numbers. clusters: of a column of vectors.

    Raises:
        InputError: an argument cannot be used; the message says which, and what was expected.

    >>> table = {"topic": ["sea"] * 3 + ["rail"] * 3, "tokens": [5, 5, 5, 5, 5, 5]}
    >>> ranks = order(table, "topic", tokens="tokens")
    >>> sorted(ranks.tolist())
    [0, 1, 2, 3, 4, 5]
    >>> [sorted(table["topic"][row] for row in ranks[at : at + 2]) for at in (0, 2, 4)]
    [['rail', 'sea'], ['rail', 'sea'], ['rail', 'sea']]
    """
    rows = read_rows(table, by, tokens, bins=bins, clusters=clusters, seed=seed)
    return order_rows(
        rows,
        strategy=strategy,
        seed=seed,
        frozen=frozen,
        targets=targets,
        score=score,
        shape=shape,
        points=points,
        strength=strength,
        score_window=score_window,
        keep=keep,
        within=within,
        **options,
    )


class Laps:
    """Orders of epochs, E of which pass one schedule together. arguments: of `core.order.order`. Keeps E orders."""

    def __init__(self, arguments: dict[str, Any], epochs: int) -> None:
        self.arguments, self.epochs = arguments, epochs
        self._lap, self._orders = 0, epoch_orders(epochs=epochs, together=True, **arguments)
        self.first = self._orders[0]

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The rows of an epoch, counted from 0, int64 (N,): a row may come twice in it, and comes E times in E."""
        lap, number = divmod(epoch, self.epochs)
        if lap != self._lap:
            given = self.arguments
            if lap:
                seed = int(np.random.SeedSequence([given["seed"], lap]).generate_state(1)[0])
                given = {**given, "seed": seed, "frozen": None}
            self._lap, self._orders = lap, epoch_orders(epochs=self.epochs, together=True, **given)
        return self._orders[number]


def table_epochs(
    table: Any,
    by: By,
    *,
    epochs: int = 1,
    tokens: Tokens = None,
    seed: int = 0,
    bins: int = BINS,
    clusters: int = CLUSTERS,
    **options: Any,
) -> Epochs | Laps:
    """The orders of all epochs; the first, the arguments and the errors are those of `order`. epochs: that pass one
    schedule of a score together, and are then its parts."""
    rows = read_rows(table, by, tokens, bins=bins, clusters=clusters, seed=seed)
    arguments = order_arguments(rows, seed=seed, **options)
    if epochs > 1 and arguments["strategy"] in SHAPES:
        return Laps(arguments, epochs)
    return plan_epochs(**arguments)


def reorder(table: AnyTable, by: By, **arguments: Any) -> AnyTable:
    """The rows of a table in their order, as the kind of table that came in: a `Dataset` by `select`, which copies
    nothing; a DataFrame with its index. Arguments and errors are those of `order`.

    >>> reorder([{"topic": "sea", "id": 1}], by="topic", tokens="id")
    [{'topic': 'sea', 'id': 1}]
    """
    opened = open_table(table)
    return opened.take(order(opened, by, **arguments))
