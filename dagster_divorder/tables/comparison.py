"""How well a table's order keeps its mix, beside shuffles of it: measures, and a picture.

Letters: N rows, J trait values.

Columns that the order balances are measured, and those that it did not see: every other column that makes a trait
(`tables.traits`), and the rows' lengths. Windows are held against the whole table at every position that they can
take (`core.measure.window_deviation`), drift along the order against shuffles (`core.measure.stationarity`).

Guarantee: the same bytes for the same table, arguments and seed.
Cost: that of the order; O(N log J) a column and shuffle for windows; drift is looked at in SAMPLE rows.
Known weakness: what no column holds is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.arrow import is_text
from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.measure.shares import cluster_mix
from dagster_divorder.core.measure.stationarity import MEASURES, Drift, Feature, sampled_places, stationarity
from dagster_divorder.core.measure.window_deviation import WindowDeviation, windows_in_stream
from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.core.order.traits import Codes, ManyCodes, bin_codes, quantile_edges
from dagster_divorder.core.rows import row_entries
from dagster_divorder.errors import InputError
from dagster_divorder.tables.rows import BINS, CLUSTERS, Rows, order_rows, read_rows
from dagster_divorder.tables.table import Table, open_table
from dagster_divorder.tables.tokens import A_ROW, LOOKED_AT, Tokens
from dagster_divorder.tables.traits import By, VectorCodes, trait_of
from dagster_divorder.view.answer import TextTable, as_text
from dagster_divorder.view.words import fixed, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from scipy.sparse import csr_matrix

Unit = Literal["rows", "tokens"]

SHUFFLES = 5
SAMPLE = 1 << 14
"""Rows at most that are looked at for drift, in whole windows."""
TELLING, ROWS_A_VALUE = 4096, 4
"""Rows at the beginning that say whether a column of text sorts rows, a value having so many of them on average, or
tells them apart, as ids do."""
SLICES = 400
"""Windows across a picture, at most."""
LENGTH, MEAN_VECTOR = "length in tokens", ", mean vector"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One measure of one column: of this order, and the mean and standard deviation of those of shuffles.

    balanced: whether the order saw the column. measure: "mean window", the total variation between a window and the
    table, mean over all positions; "worst window", the largest difference of a value's share in any window; both in
    [0, 1]. "drift" and what it is of: see `core.measure.stationarity.Drift`; drifts: it is clearly worse than shuffled.
    """

    column: str
    balanced: bool
    measure: str
    value: float
    shuffled: float
    spread: float
    drifts: bool = False

    def shown(self) -> dict[str, str]:
        """As people read it: shares in per cent."""
        share = self.measure in ("mean window", "worst window")
        values = (self.value, self.shuffled, self.spread)
        words = [fixed(100 * value) if share else number(value) for value in values]
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
    """Measures of an order beside those of shuffles; less is better in all. It prints as a table, and shows as one in a
    notebook.

    rows: N. window: its size in `unit`. shuffles: of the windows; drift is held against
    `core.measure.stationarity.SHUFFLES`.
    """

    rows: int
    window: int
    unit: Unit
    strategy: str
    shuffles: int
    lines: tuple[Line, ...]

    @property
    def drifting(self) -> tuple[str, ...]:
        """Columns along which the order drifts, clearly more than shuffles do."""
        return tuple(line.column for line in self.lines if line.drifts)

    @property
    def title(self) -> str:
        """What was compared, in a line."""
        found = f"drifting: {', '.join(self.drifting)}" if self.drifting else "nothing drifts"
        return (
            f"{self.rows:,} rows, {self.strategy}, windows of {self.window:,} {self.unit}, beside {self.shuffles} "
            f"shuffles: {found}"
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
    """Measures of a table's order beside those of `shuffles` shuffles, of the columns in `by` and of what the order
    did not see: all other columns that sort the rows.

    window: such as a batch, in rows, whose shares are then of rows; or in tokens, with unit="tokens". seed, the others:
    as those of `order`, but for targets, along which no window has the table's own mix.

    Raises:
        InputError: an argument cannot be used, or the table is no longer than a window.

    >>> table = {"topic": ["sea"] * 300 + ["rail"] * 300, "tokens": [5] * 600}
    >>> found = compare(table, "topic", window=20, tokens="tokens")
    >>> [(line.measure, line.value < line.shuffled) for line in found.lines[:2]]
    [('mean window', True), ('worst window', True)]
    """
    if "targets" in arguments:
        raise InputError(
            "compare holds windows against the table's own mix, which targets leave; leave targets out"
        )
    whole_number("shuffles", shuffles, 2)
    rows = read_rows(table, by, tokens, bins=bins, clusters=clusters, seed=seed)
    streams = _streams(rows, unit, window)
    ours = order_rows(rows, seed=seed, **arguments)
    columns = {**rows.traits, **_unseen(rows, tokens, seed)}
    random = np.random.default_rng(seed)
    orders = [ours, *(random.permutation(rows.table.rows) for _ in range(shuffles))]
    drift = {of.feature: of for of in _drift(rows, columns, ours, streams, seed)}
    lines: list[Line] = []
    for name in {**columns, **drift}:
        balanced = name.removesuffix(MEAN_VECTOR) in rows.weights or name == LENGTH
        if name in columns:
            found = [streams.windows(columns[name], order) for order in orders]
            lines += [
                _line(name, balanced, "mean window", [of.mean_tv for of in found]),
                _line(name, balanced, "worst window", [of.worst for of in found]),
            ]
        if name in drift:
            worst = drift[name].worst
            measure = drift[name].measures[worst]
            lines.append(
                Line(
                    column=name,
                    balanced=balanced,
                    measure=f"drift, {MEASURES[worst]}",
                    **vars(measure),
                    drifts=measure.drifts,
                )
            )
    return Comparison(
        rows=rows.table.rows,
        window=window,
        unit=unit,
        strategy=arguments.get("strategy", "balanced"),
        shuffles=shuffles,
        lines=tuple(lines),
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
    """One picture: the shares of each column's values along a shuffle and along the order, window by window. Arguments
    are those of `compare`, and `targets` of `order`, whose mix that moves it shows; errors as there.

    A matplotlib Figure, for `figure.savefig("mix.png")`, or for a notebook, which shows it.
    """
    rows = read_rows(table, by, tokens, bins=bins, clusters=clusters, seed=seed)
    streams = _streams(rows, unit, window)
    ours = order_rows(rows, seed=seed, **arguments)
    orders = {
        "shuffled": np.random.default_rng(seed).permutation(rows.table.rows),
        "in order": ours,
    }
    slices = min(SLICES, int(streams.amounts.sum()) // streams.window)
    mixes = {
        name: {title: streams.mix(of, order, slices) for title, order in orders.items()}
        for name, of in rows.traits.items()
    }
    from dagster_divorder.view.mixes import draw_mixes

    names = {name: of.names for name, of in rows.traits.items()}
    return draw_mixes(mixes, names, f"{rows.table.rows:,} rows, windows of {window:,} {unit}")


@dataclass(frozen=True, eq=False)
class _Streams:
    """amounts: int64 (N,), what each row counts in windows; window: their size in the same."""

    amounts: NDArray[np.int64]
    window: int

    def parts(self, of: Codes | ManyCodes) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """(amounts, codes), (nnz,): those of each value of each row."""
        return (of.shared(self.amounts) if isinstance(of, ManyCodes) else self.amounts), of.codes

    def windows(self, of: Codes | ManyCodes, order: NDArray[np.int64]) -> WindowDeviation:
        amounts, codes = self.parts(of)
        at = _entries(of, order)
        return windows_in_stream(amounts[at], codes[at], len(of.names), self.window)

    def mix(self, of: Codes | ManyCodes, order: NDArray[np.int64], slices: int) -> NDArray[np.float32]:
        """Shares in equal slices of the order, float32 (slices, J)."""
        return cluster_mix(_entries(of, order), *self.parts(of), len(of.names), slices)

    def counts(self, of: Codes | ManyCodes) -> csr_matrix:
        """(N, J)."""
        from scipy.sparse import csr_matrix

        amounts, codes = self.parts(of)
        indptr = of.indptr if isinstance(of, ManyCodes) else np.arange(len(codes) + 1)
        return csr_matrix((amounts, codes, indptr), shape=(len(indptr) - 1, len(of.names)))


def _entries(of: Codes | ManyCodes, order: NDArray[np.int64]) -> NDArray[np.int64]:
    return row_entries(of.indptr, order)[0] if isinstance(of, ManyCodes) else order


def _streams(rows: Rows, unit: Unit, window: int) -> _Streams:
    """A row counts A_ROW, so that the values of a list share it evenly, or its tokens.

    Raises:
        InputError: the unit is unknown, or the table no longer than a window.
    """
    one_of("unit", unit, get_args(Unit))
    amounts = rows.tokens if unit == "tokens" else np.full(rows.table.rows, A_ROW)
    size = whole_number("window", window, 1) * (1 if unit == "tokens" else A_ROW)
    total = int(amounts.sum())
    if total <= size:
        whole = total if unit == "tokens" else rows.table.rows
        raise InputError(f"window is {window:,} {unit}; expected fewer than the table has, {whole:,}")
    return _Streams(amounts, size)


def _unseen(rows: Rows, tokens: Tokens, seed: int) -> dict[str, Codes | ManyCodes]:
    """What the order did not see: columns that are not in `by` and sort the rows; and lengths, where they differ."""
    found: dict[str, Codes | ManyCodes] = {}
    for name in rows.table.names:
        if name not in rows.weights and name != tokens and (of := _sorting(rows.table, name, seed)):
            found[name] = of
    if len(edges := quantile_edges(rows.tokens, BINS)):
        found[LENGTH] = Codes(bin_codes(rows.tokens, edges), ("",) * (len(edges) + 1))
    return found


def _sorting(table: Table, name: str, seed: int) -> Codes | ManyCodes | None:
    """A column as a trait, unless it makes none or tells rows apart."""
    import pyarrow.compute as pc

    def first(rows: int) -> Table:
        return open_table(table.take(np.arange(min(table.rows, rows))))

    try:
        # The whole of a column of pictures, say, is not read to see that it makes no trait.
        few = first(LOOKED_AT)
        trait_of(few, name, bins=BINS, clusters=CLUSTERS, seed=seed)
        if is_text(few.column(name).type):
            values = first(TELLING).column(name)
            if ROWS_A_VALUE * pc.count_distinct(values).as_py() > len(values):
                return None
        return trait_of(table, name, bins=BINS, clusters=CLUSTERS, seed=seed)
    except InputError:
        return None


def _drift(
    rows: Rows,
    columns: Mapping[str, Codes | ManyCodes],
    ours: NDArray[np.int64],
    streams: _Streams,
    seed: int,
) -> tuple[Drift, ...]:
    """Of columns, of the mean direction of vectors, and of lengths."""
    batch = max(1, round(streams.window * rows.table.rows / int(streams.amounts.sum())))
    some = ours[sampled_places(rows.table.rows, batch, SAMPLE)]

    def features() -> Iterator[Feature]:
        for name, of in columns.items():
            if name == LENGTH:
                yield Feature(name, "number", np.log1p(rows.tokens[some]))
                continue
            yield Feature(name, "mix", streams.counts(of)[some])
            if isinstance(of, VectorCodes):
                yield Feature(name + MEAN_VECTOR, "vector", of.directions[some].astype(np.float64))

    return stationarity(features(), len(some), batch=batch, seed=seed).features


def _line(column: str, balanced: bool, measure: str, values: Sequence[float]) -> Line:
    """values: of the order, and of the shuffles."""
    shuffled, spread = float(np.mean(values[1:])), float(np.std(values[1:], ddof=1))
    return Line(
        column=column, balanced=balanced, measure=measure, value=values[0], shuffled=shuffled, spread=spread
    )
