"""The rows of a table as items to order, and their order as sections: rows that are already consumed, then the others,
or windows of a score.

Letters: N rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import whole_number, whole_numbers
from dagster_divorder.core.order.epochs import Epochs, plan_epochs
from dagster_divorder.core.order.items import TABLE_WITHIN, Items, document_items
from dagster_divorder.core.order.schedule import SHAPES, Pieces, token_ranks, window_share, windows_of
from dagster_divorder.core.order.sections import section_seed
from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.core.order.traits import ManyCodes
from dagster_divorder.core.packing.coordinates import VECTOR_SHARE, with_blocks
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import Table, numbers_of, open_table
from dagster_divorder.tables.tokens import Tokens, row_tokens, warn
from dagster_divorder.tables.traits import By, TraitCodes, VectorCodes, trait_of, weights_of

Ints = NDArray[np.int64]

BINS = 16
"""Quantile bins of a column of numbers."""
CLUSTERS = 30
"""Clusters of a column of vectors."""
BATCH = 256
"""Rows of a batch, as in `core.order.order`."""
FEWEST = 0.5
"""Least share of the rows that must have a score."""


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


class Followed(NamedTuple):
    """The score that an order follows. form: the shape. pieces: the schedule. ranks: float64 (N,), by row, NaN for
    none.
    """

    form: str
    pieces: Pieces
    ranks: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TableOrder:
    """The order of a table's rows, section by section in every epoch; consumed rows are the first section."""

    sections: list[Section]
    followed: Followed | None = None

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
    score: str | ArrayLike | None = None,
    shape: str = "rise",
    within: float = TABLE_WITHIN,
    **options: Any,
) -> TableOrder:
    """The order of a table's rows; arguments and errors as in `tables.ordering.order`."""
    if strategy in SHAPES:
        raise InputError(
            f"strategy is {strategy!r}, which is a schedule; expected shape={strategy!r} with a score, and the "
            "strategy that orders the rows of a window"
        )
    batch = whole_number("batch", options.get("batch", BATCH), 1)
    consumed = _frozen_rows(frozen, rows.table.rows)
    followed = None
    if score is not None:
        pieces = SHAPES[one_of("shape", shape, SHAPES)]
        followed = Followed(shape, pieces, token_ranks(row_scores(rows.table, score), rows.tokens))
    elif shape != "rise":
        raise InputError("shape is given, and score is not; name the column to follow in score")
    left = np.ones(rows.table.rows, bool)
    left[consumed] = False
    parts = [np.flatnonzero(left)]
    if followed:
        size = batch / max(1, rows.table.rows)
        window = window_share(size, size / batch, followed.pieces)
        begin = float(rows.tokens[consumed].sum() / max(1, rows.tokens.sum()))
        numbers = windows_of(
            followed.ranks[parts[0]], rows.tokens[parts[0]], followed.pieces, window, begin=begin, seed=seed
        )
        parts = [parts[0][numbers == number] for number in range(int(numbers.max(initial=0)) + 1)]
    items = rows.items(within)
    sections = []
    for number, of_section in enumerate([consumed, *parts] if len(consumed) else parts):
        is_given = number == 0 and len(consumed) > 0
        own = items if len(of_section) == rows.table.rows and not is_given else items.take(of_section)
        plan = plan_epochs(
            own,
            strategy=strategy,
            seed=section_seed(seed, max(0, number - (len(consumed) > 0))),
            first=np.arange(len(of_section)) if is_given else None,
            **options,
        )
        sections.append(Section(of_section, plan))
    return TableOrder(sections, followed)


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


def row_scores(table: Table, score: str | ArrayLike) -> NDArray[np.float64]:
    """The score of each row, float64 (N,), NaN for none. Warns with the number of rows that have none.

    Raises:
        InputError: scores are not numbers, are all the same, or do not fit the table's length, or more than half are
            missing.
    """
    import pyarrow as pa

    title = f"column {score!r}" if isinstance(score, str) else "the array"
    if not hasattr(score, "__len__"):
        raise InputError(f"score is {score!r}; expected the name of a column, or a number for each row")
    opened = table if isinstance(score, str) else open_table({"score": score})
    if opened.rows != table.rows:
        raise InputError(f"score holds {opened.rows:,} numbers; expected one for each of {table.rows:,} rows")
    column = opened.column(score if isinstance(score, str) else "score")
    types, kind = pa.types, column.type
    if not (
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)
    ):
        raise InputError(
            f"score is {title}, which holds {kind}; expected numbers: convert them, or name another column"
        )
    numbers = numbers_of(column.cast(pa.float64(), safe=False).fill_null(np.nan))
    numbers = np.where(np.isinf(numbers), np.nan, numbers)
    known = numbers[~np.isnan(numbers)]
    missing = table.rows - len(known)
    if len(known) < FEWEST * table.rows:
        raise InputError(
            f"score is {title}, in which {missing:,} of {table.rows:,} rows have no number; expected one for at least "
            "half of them: give the others one, or name another column"
        )
    if len(known) > 1 and known.min() == known.max():
        raise InputError(
            f"score is {title}, which is {known[0]:g} in every row; expected numbers that differ: name another "
            "column, or leave score out"
        )
    if missing:
        warn(f"{missing:,} of {table.rows:,} rows have no score: they are spread evenly")
    return numbers
