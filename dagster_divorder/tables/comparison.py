"""How well a table's order keeps its mix, compared with shuffles: measures and a picture.

Letters: N rows, J trait values.

Measured are the balanced columns, all other columns that make a trait (`tables.traits`), which the order did not see,
and the rows' lengths. Windows at every position are compared with the whole table (`core.measure.window_deviation`),
drift along the order with shuffles (`core.measure.stationarity`).

Guarantee: the same table, arguments and seed give the same bytes.
Cost: the order's own; O(N log J) a column and shuffle for windows; drift is measured on SAMPLE rows.
Known weakness: properties of rows that no column holds are not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.arrow import is_text
from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.measure.shares import cluster_mix
from dagster_divorder.core.measure.stationarity import MEASURES, Drift, Feature, sampled_places, stationarity
from dagster_divorder.core.measure.stretches import asked_mix, off_schedule, shuffled_inside
from dagster_divorder.core.measure.window_deviation import WindowDeviation, windows_in_stream
from dagster_divorder.core.order.schedule import asked_rank
from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.core.order.traits import Codes, ManyCodes, bin_codes, quantile_edges
from dagster_divorder.core.rows import row_entries
from dagster_divorder.errors import InputError
from dagster_divorder.tables.rows import BINS, CLUSTERS, Rows, read_rows
from dagster_divorder.tables.sections import BATCH, TableOrder, order_table
from dagster_divorder.tables.table import Table
from dagster_divorder.tables.tokens import A_ROW, LOOKED_AT, Tokens
from dagster_divorder.tables.traits import By, TraitCodes, VectorCodes, trait_of
from dagster_divorder.view.answer import TextTable, as_text
from dagster_divorder.view.words import fixed, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from scipy.sparse import csr_matrix

Unit = Literal["rows", "tokens"]

SHUFFLES = 5
SAMPLE = 1 << 14
"""Most rows in which drift is measured, in whole windows."""
FIRST_ROWS, ROWS_A_VALUE = 4096, 4
"""Rows a value: a column of text makes a trait if the first rows hold each value this often on average. Columns such as
ids, which only tell rows apart, make none."""
SLICES = 400
"""Most windows across a picture."""
SHARES = ("mean window", "worst window")
"""Measures that are shares of a window's tokens or rows."""
LENGTH, MEAN_VECTOR = "length in tokens", ", mean vector"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One measure of one column: its value for the order, and its mean and standard deviation over shuffles.

    balanced: whether the order saw the column. measure: "mean window" or "worst window", the total variation between a
    window and the table, in [0, 1], over all positions; or "drift, ..." (`core.measure.stationarity.Drift`). drifts:
    the order is clearly worse than shuffles.

    Of rows that follow a score or consumed rows, windows are compared with the mix of their section, and the shuffles
    stay inside sections. "off the schedule": the mean distance between the mean rank of a batch by score, in [0, 1],
    and the asked rank.
    """

    column: str
    balanced: bool
    measure: str
    value: float
    shuffled: float
    spread: float
    drifts: bool = False

    def shown(self) -> dict[str, str]:
        """Cells of a table for people, by column; shares in per cent."""
        share = self.measure in SHARES
        values = (self.value, self.shuffled, self.spread)
        words = [
            "" if np.isnan(value) else fixed(100 * value) if share else number(value) for value in values
        ]
        return {
            "column": self.column,
            "balanced": "yes" if self.balanced else "no",
            "measure": f"{self.measure}, %" if share else self.measure,
            "in order": words[0] + (" drifts" if self.drifts else ""),
            "shuffled": words[1],
            "±": words[2],
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Measures of an order beside those of shuffles; less is better in all. It prints as a table, also in a notebook.

    rows: N. window: its size in `unit`. shuffles: their number for windows; drift uses
    `core.measure.stationarity.SHUFFLES`. schedule: its shape and score, "" without one.
    """

    rows: int
    window: int
    unit: Unit
    strategy: str
    shuffles: int
    lines: tuple[Line, ...]
    schedule: str = ""

    @property
    def drifting(self) -> tuple[str, ...]:
        """Columns that drift clearly more along the order than in shuffles."""
        return tuple(line.column for line in self.lines if line.drifts)

    @property
    def title(self) -> str:
        """The comparison and its result in one line."""
        along = f" along {self.schedule}" if self.schedule else ""
        drift = f"drifting: {', '.join(self.drifting)}" if self.drifting else "nothing drifts"
        return (
            f"{self.rows:,} rows, {self.strategy}{along}, windows of {self.window:,} {self.unit}, beside "
            f"{self.shuffles} shuffles: {drift}"
        )

    def __str__(self) -> str:
        return as_text([self.title, "", self._table])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return replace(self._table, title=self.title)._repr_html_()

    @property
    def _table(self) -> TextTable:
        return TextTable([line.shown() for line in self.lines])


def compare(
    table: Any,
    by: By,
    *,
    window: int,
    unit: Unit = "rows",
    shuffles: int = SHUFFLES,
    tokens: Tokens = None,
    bins: int = BINS,
    clusters: int = CLUSTERS,
    seed: int = 0,
    **arguments: Any,
) -> Comparison:
    """Measures a table's order beside shuffles: the columns in `by`, and all other columns that make a trait.

    window: the size of a window, such as a batch, in `unit`: "rows" or "tokens". Shares are then of rows, or of tokens.
    shuffles: how many shuffles to compare with, 2 or more.
    table, by, arguments: as in `order`. With a score, a window is compared with the mix of its section, and the
        shuffles stay inside sections.

    Raises:
        InputError: an argument cannot be used, or the table is no longer than a window.

    >>> table = {"topic": ["sea"] * 300 + ["rail"] * 300, "tokens": [5] * 600}
    >>> comparison = compare(table, "topic", window=20, tokens="tokens")
    >>> [(line.measure, line.value < line.shuffled) for line in comparison.lines[:2]]
    [('mean window', True), ('worst window', True)]
    """
    whole_number("shuffles", shuffles, 2)
    rows = read_rows(table, by, tokens, bins=bins, clusters=clusters, seed=seed)
    streams = _streams(rows, unit, window)
    made = order_table(rows, seed=seed, **arguments)
    ours, stretch = made.first, made.stretch
    columns = {**rows.traits, **_unseen(rows, tokens, seed)}
    compared = partial(
        Comparison,
        rows=rows.table.rows,
        window=window,
        unit=unit,
        strategy=arguments.get("strategy", "balanced"),
        shuffles=shuffles,
    )
    random = np.random.default_rng(seed)
    orders = [ours, *(ours[shuffled_inside(stretch, random)] for _ in range(shuffles))]
    lines: list[Line] = []
    if made.followed:
        score = arguments["score"] if isinstance(arguments["score"], str) else "score"
        compared = partial(compared, schedule=f"{made.followed.form} of {score}")
        columns = {name: trait for name, trait in columns.items() if name != score or name in rows.weights}
        lines.append(_off_the_schedule(made, rows, orders, int(arguments.get("batch", BATCH))))
    drifts = {drift.feature: drift for drift in _drift(rows, columns, ours, stretch, streams, seed)}
    for name in {**columns, **drifts}:
        line = partial(
            Line, column=name, balanced=name.removesuffix(MEAN_VECTOR) in rows.weights or name == LENGTH
        )
        if name in columns:
            deviations = [streams.windows(columns[name], order, stretch) for order in orders]
            for measure, values in (
                ("mean window", [deviation.mean_tv for deviation in deviations]),
                ("worst window", [deviation.worst_tv for deviation in deviations]),
            ):
                shuffled, spread = float(np.mean(values[1:])), float(np.std(values[1:], ddof=1))
                lines.append(line(measure=measure, value=values[0], shuffled=shuffled, spread=spread))
        if name in drifts:
            worst = drifts[name].worst
            drift = drifts[name].measures[worst]
            lines.append(line(measure=f"drift, {MEASURES[worst]}", **vars(drift), drifts=drift.drifts))
    return compared(lines=tuple(lines))


def _off_the_schedule(made: TableOrder, rows: Rows, orders: Sequence[NDArray[np.int64]], batch: int) -> Line:
    assert made.followed is not None
    edges = np.unique(np.append(np.arange(0, rows.table.rows, batch), rows.table.rows))
    values = []
    for order in orders:
        ends = np.append(0, np.cumsum(rows.tokens[order]))[edges]
        asked = asked_rank(made.followed.pieces, 0.5 * (ends[1:] + ends[:-1]) / max(1, ends[-1]))
        values.append(off_schedule(made.followed.ranks[order], rows.tokens[order], asked, edges))
    return Line(
        column="(score)",
        balanced=False,
        measure="off the schedule",
        value=values[0],
        shuffled=float(np.mean(values[1:])),
        spread=float(np.std(values[1:], ddof=1)),
    )


def plot(
    table: Any,
    by: By,
    *,
    window: int,
    unit: Unit = "rows",
    tokens: Tokens = None,
    bins: int = BINS,
    clusters: int = CLUSTERS,
    seed: int = 0,
    **arguments: Any,
) -> Figure:
    """Draws the shares of each column's values, window by window, along a shuffle and along the order.

    Arguments and errors are those of `compare`. With a score the shuffle stays inside sections.

    Returns a matplotlib Figure. A notebook shows it; `figure.savefig("mix.png")` writes it.
    """
    rows = read_rows(table, by, tokens, bins=bins, clusters=clusters, seed=seed)
    streams = _streams(rows, unit, window)
    made = order_table(rows, seed=seed, **arguments)
    ours = made.first
    shuffled = ours[shuffled_inside(made.stretch, np.random.default_rng(seed))]
    orders = {"shuffled": shuffled, "in order": ours}
    slices = min(SLICES, int(streams.amounts.sum()) // streams.window)
    mixes = {
        name: {title: streams.mix(trait, order, slices) for title, order in orders.items()}
        for name, trait in rows.traits.items()
    }
    from dagster_divorder.view.pictures import mixes_along

    names = {name: trait.names for name, trait in rows.traits.items()}
    return mixes_along(mixes, names, f"{rows.table.rows:,} rows, windows of {window:,} {unit}")


@dataclass(frozen=True, eq=False)
class _Streams:
    """amounts: int64 (N,), how much of a window each row takes. window: its size in the same unit."""

    amounts: NDArray[np.int64]
    window: int

    def entries(self, trait: TraitCodes) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """(amounts, codes), each (nnz,), of each value of each row."""
        return (trait.shared(self.amounts) if isinstance(trait, ManyCodes) else self.amounts), trait.codes

    def windows(
        self, trait: TraitCodes, order: NDArray[np.int64], stretch: NDArray[np.int64]
    ) -> WindowDeviation:
        """stretch: int64 (N,), of each place of the order."""
        amounts, codes = self.entries(trait)
        at, mix = _entry_order(trait, order), None
        if stretch.any():
            widths = np.diff(trait.indptr)[order] if isinstance(trait, ManyCodes) else 1
            mix = asked_mix(amounts[at], codes[at], len(trait.names), np.repeat(stretch, widths))
        return windows_in_stream(amounts[at], codes[at], len(trait.names), self.window, mix)

    def mix(self, trait: TraitCodes, order: NDArray[np.int64], slices: int) -> NDArray[np.float32]:
        """Shares in equal slices of the order, float32 (slices, J)."""
        return cluster_mix(_entry_order(trait, order), *self.entries(trait), len(trait.names), slices)

    def counts(self, trait: TraitCodes) -> csr_matrix:
        """Counts of the trait's values, CSR (N, J)."""
        from scipy.sparse import csr_matrix

        amounts, codes = self.entries(trait)
        indptr = trait.indptr if isinstance(trait, ManyCodes) else np.arange(len(codes) + 1)
        return csr_matrix((amounts, codes, indptr), shape=(len(indptr) - 1, len(trait.names)))


def _entry_order(trait: TraitCodes, order: NDArray[np.int64]) -> NDArray[np.int64]:
    return row_entries(trait.indptr, order)[0] if isinstance(trait, ManyCodes) else order


def _streams(rows: Rows, unit: Unit, window: int) -> _Streams:
    """A row's amount is its tokens, or A_ROW; the values of a list share it evenly.

    Raises:
        InputError: the unit is unknown, or the table no longer than a window.
    """
    one_of("unit", unit, get_args(Unit))
    amounts = rows.tokens if unit == "tokens" else np.full(rows.table.rows, A_ROW)
    size = whole_number("window", window, 1) * (1 if unit == "tokens" else A_ROW)
    total = int(amounts.sum())
    if total <= size:
        available = total if unit == "tokens" else rows.table.rows
        raise InputError(f"window is {window:,} {unit}; expected fewer than the table has, {available:,}")
    return _Streams(amounts, size)


def _unseen(rows: Rows, tokens: Tokens, seed: int) -> dict[str, TraitCodes]:
    """Traits that the order did not see: columns outside `by`, and lengths if they differ."""
    traits: dict[str, TraitCodes] = {}
    for name in rows.table.names:
        if name not in rows.weights and name != tokens and (trait := _unseen_trait(rows.table, name, seed)):
            traits[name] = trait
    if len(edges := quantile_edges(rows.tokens, BINS)):
        traits[LENGTH] = Codes(bin_codes(rows.tokens, edges), ("",) * (len(edges) + 1))
    return traits


def _unseen_trait(table: Table, name: str, seed: int) -> TraitCodes | None:
    """A column as a trait; None if it makes none, or only tells rows apart."""
    import pyarrow.compute as pc

    try:
        # Its first rows show that a column, say of pictures, makes no trait; the rest is not read.
        trait_of(table.first(LOOKED_AT), name, bins=BINS, clusters=CLUSTERS, seed=seed)
        values = table.first(FIRST_ROWS).column(name)
        if is_text(values.type) and ROWS_A_VALUE * pc.count_distinct(values).as_py() > len(values):
            return None
        return trait_of(table, name, bins=BINS, clusters=CLUSTERS, seed=seed)
    except InputError:
        return None


def _drift(
    rows: Rows,
    columns: Mapping[str, TraitCodes],
    order: NDArray[np.int64],
    stretch: NDArray[np.int64],
    streams: _Streams,
    seed: int,
) -> tuple[Drift, ...]:
    """Drift of columns, of the mean direction of vectors, and of lengths."""
    batch = max(1, round(streams.window * rows.table.rows / int(streams.amounts.sum())))
    bounds = np.flatnonzero(np.diff(stretch, prepend=-1, append=-1))
    places = sampled_places(rows.table.rows, batch, SAMPLE, bounds if len(bounds) > 2 else None)
    sample = order[places]

    def features() -> Iterator[Feature]:
        for name, trait in columns.items():
            if name == LENGTH:
                yield Feature(name, "number", np.log1p(rows.tokens[sample]))
                continue
            yield Feature(name, "mix", streams.counts(trait)[sample])
            if isinstance(trait, VectorCodes):
                yield Feature(name + MEAN_VECTOR, "vector", trait.directions[sample].astype(np.float64))

    return stationarity(features(), len(sample), batch=batch, seed=seed, stretch=stretch[places]).features
