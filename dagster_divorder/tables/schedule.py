"""A table's order along a schedule of a score: one of its columns of numbers, or separate numbers.

Letters: N rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.measure.schedule import Lap
from dagster_divorder.core.measure.schedule import Schedule as MeasuredSchedule
from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.core.order.curricula import SHAPES, ShapeOptions, pieces_of, window_share
from dagster_divorder.core.order.schedule import token_ranks
from dagster_divorder.core.order.strategy import Nesting, checked, nearest, one_of
from dagster_divorder.core.order.traits import Codes
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import Table, numbers_of, open_table
from dagster_divorder.tables.tokens import warn

if TYPE_CHECKING:
    from dagster_divorder.tables.rows import Rows

BATCH = 256
"""Rows of a batch, as in `core.order.order`."""
PROBLEM = ("seed", "frozen", "sequence_length", "batch")
"""Arguments of `core.order.order` other than a strategy's options."""
FEWEST = 0.5
"""Least share of the rows that must have a score."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The schedule that an order follows; see `tables.ordering.order`."""

    score: str | ArrayLike | None = None
    shape: str = "rise"
    points: ArrayLike | None = None
    strength: float = 1.0
    score_window: int | None = None
    keep: str | Iterable[str] = ()

    @property
    def form(self) -> str:
        """The name of its strategy in `core.order.curricula`."""
        if self.points is None:
            return one_of("shape", self.shape, (name for name in SHAPES if name != "points"))
        if self.shape != Schedule.shape:
            raise InputError(f"shape is {self.shape!r}, and points are given; remove one of them")
        return "points"

    def arguments(self, rows: Rows, strategy: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `core.order.order` that replace `strategy` and its options.

        Raises:
            InputError: one of them cannot be used, or the scores cannot be followed.
        """
        if strategy in SHAPES:
            raise InputError(
                f"strategy is {strategy!r}, which is a schedule; expected shape={strategy!r} with a score, and the "
                "strategy that orders the rows of a window"
            )
        if self.score is None:
            for name, usual in vars(Schedule()).items():
                if repr(vars(self)[name]) != repr(usual):
                    raise InputError(f"{name} is given, and score is not; name the column to follow in score")
            return {"strategy": strategy, **options}
        for name, ours in (("inside", "strategy"), ("window", "score_window"), ("scores", "score")):
            if name in options:
                raise InputError(f"{name} is no argument of a table's order; expected {ours}")
        form, window = self.form, self.score_window
        if window is not None:
            whole_number("score_window", window, 1)
        self._check_options(form, strategy, options)
        if self.strength == 0:
            shape = SHAPES[form].model_fields
            others = {name: value for name, value in options.items() if name not in shape}
            return {"strategy": strategy, **others}
        numbers = row_scores(rows.table, self.score)
        batch = whole_number("batch", options.get("batch", BATCH), 1)
        points = {} if self.points is None else {"points": self.points}
        own = {name: value for name, value in options.items() if name in SHAPES[form].model_fields}
        pieces = pieces_of(form, checked(SHAPES[form], {**points, **own}).model_dump())
        return {
            "strategy": form,
            "inside": strategy,
            "scores": token_ranks(numbers, rows.tokens, self._kept(rows)),
            "strength": self.strength,
            "window": window_share(window, batch / max(1, rows.table.rows), pieces),
            **points,
            **options,
        }

    @staticmethod
    def _check_options(form: str, strategy: str, options: Mapping[str, Any]) -> None:
        """Raises InputError if neither the shape nor the strategy has an option."""
        own = SHAPES[form].model_fields.keys() - ShapeOptions.model_fields.keys() - {"points"}
        along = STRATEGIES[form]
        assert isinstance(along, Nesting)
        inner = along.others[one_of("strategy", strategy, along.others)].option_names(options)
        for unknown in sorted(options.keys() - {*own, *inner, *PROBLEM}):
            known = (
                f"its options are {', '.join(sorted(own))}{nearest(unknown, own)}" if own else "it has none"
            )
            raise InputError(f"{unknown} is no option of the shape {form!r}; {known}")

    def _kept(self, rows: Rows) -> list[NDArray[np.int32]]:
        """Codes of the columns in `keep`, int32 (N,) each."""
        codes = []
        for name in [self.keep] if isinstance(self.keep, str) else self.keep:
            trait = rows.traits[one_of("keep", name, rows.traits)]
            if not isinstance(trait, Codes):
                raise InputError(
                    f"keep names {name!r}, a column of lists; expected columns of one value a row"
                )
            codes.append(trait.codes)
        return codes


def along_schedule(
    rows: Rows, arguments: Mapping[str, Any], order: NDArray[np.int64], total: int
) -> tuple[MeasuredSchedule, Lap]:
    """(the schedule, the lap of an order along it).

    arguments: those of `core.order.order` that made `order`, int64 (N,). total: the sum over all rows, in the unit of
    the measures.
    """
    frozen = arguments.get("frozen")
    consumed = order[: 0 if frozen is None else len(frozen)]
    schedule, sizes = MeasuredSchedule.of(arguments), rows.tokens
    lap = Lap.of(
        order[len(consumed) :],
        arguments["scores"],
        sizes,
        schedule,
        window=arguments["window"],
        batch=arguments.get("batch", BATCH),
        begin=float(sizes[consumed].sum() / max(1, sizes.sum())) if len(consumed) else 0.0,
        seed=arguments["seed"],
    )
    return schedule, replace(lap, width=max(1, round(arguments["window"] * total)))


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
    numeric = (types.is_integer, types.is_floating, types.is_decimal, types.is_null)
    if not any(holds(kind) for holds in numeric):
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
