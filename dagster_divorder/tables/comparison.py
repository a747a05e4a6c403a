"""How well a table's order keeps its mix, beside the table as given and shuffles: measures and a picture.

Letters: N rows, J trait values.

Measured are the balanced columns, all other columns that make a trait (`tables.traits`), which the order did not see,
and the rows' lengths: windows by `core.measure.order`, drift along the order by `core.measure.stationarity`.

Guarantee: the same table, arguments and seed give the same bytes.
Cost: the order's own; O(N J) a column and shuffle for windows; drift is measured on SAMPLE rows.
Known weakness: properties of rows that no column holds are not measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.arrow import is_text
from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.measure import cluster_mix, measure
from dagster_divorder.core.measure.stationarity import MEASURES, Drift, Feature, sampled_places, stationarity
from dagster_divorder.core.measure.windows import Counts
from dagster_divorder.core.order.traits import Codes, ManyCodes, bin_codes, quantile_edges
from dagster_divorder.core.rows import row_entries
from dagster_divorder.errors import InputError
from dagster_divorder.tables.ordering import BINS, CLUSTERS, Rows, table_epochs
from dagster_divorder.tables.tokens import A_ROW, LOOKED_AT, Tokens
from dagster_divorder.tables.traits import By, TraitCodes, VectorCodes, trait_of
from dagster_divorder.view.answer import TextTable, as_text
from dagster_divorder.view.words import fixed, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Ints = NDArray[np.int64]

SHUFFLES = 5
SAMPLE = 1 << 14
"""Most rows in which drift is measured, in whole windows."""
FIRST_ROWS, ROWS_A_VALUE = 4096, 4
"""Rows a value: a column of text makes a trait if the first rows hold each value this often on average. Columns such as
ids, which only tell rows apart, make none."""
SLICES = 400
"""Most windows across a picture."""
TV, SHARE_ERROR = "TV of windows, mean", "share error of any window, worst"
IN_PER_CENT = {TV: "%", SHARE_ERROR: "points"}
"""Measures in shares of a window, and their units."""
LENGTH, MEAN_VECTOR = "length in tokens", ", mean vector"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One measure of one column: its value for the order and for the table as given, and its mean and standard
    deviation over shuffles.

    balanced: whether the order saw the column. measure: "TV of windows, mean", the mean total variation between windows
    that follow each other and the table; "share error of any window, worst", the largest distance of one value's share
    from the table's; both in [0, 1]; or "drift, ..." (`core.measure.stationarity.Drift`). drifts: the order is clearly
    worse than shuffles.
    """

    column: str
    balanced: bool
    measure: str
    value: float
    shuffled: float
    spread: float
    given: float
    drifts: bool = False

    def shown(self) -> dict[str, str]:
        """Cells of a table for people, by column; shares in per cent and percentage points."""
        unit = IN_PER_CENT.get(self.measure)
        value, shuffled, spread, given = (
            "" if np.isnan(value) else fixed(100 * value) if unit else number(value)
            for value in (self.value, self.shuffled, self.spread, self.given)
        )
        return {
            "column": self.column,
            "balanced": "yes" if self.balanced else "no",
            "measure": f"{self.measure}, {unit}" if unit else self.measure,
            "in order": value + (" drifts" if self.drifts else ""),
            "shuffled": shuffled,
            "±": spread,
            "as given": given,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """Measures of an order beside those of shuffles; less is better in all. It prints as a table, also in a notebook.

    rows: N. window: its rows. shuffles: their number for windows; drift uses
    `core.measure.stationarity.SHUFFLES`.
    """

    rows: int
    window: int
    strategy: str
    shuffles: int
    lines: tuple[Line, ...]

    @property
    def drifting(self) -> tuple[str, ...]:
        """Columns that drift clearly more along the order than in shuffles."""
        return tuple(line.column for line in self.lines if line.drifts)

    @property
    def title(self) -> str:
        """The comparison and its result in one line."""
        drift = f"drifting: {', '.join(self.drifting)}" if self.drifting else "nothing drifts"
        return (
            f"{self.rows:,} rows, {self.strategy}, windows of {self.window:,} rows, beside "
            f"{self.shuffles} shuffles: {drift}"
        )

    def __repr__(self) -> str:
        return as_text([self.title, "", TextTable([line.shown() for line in self.lines])])

    def _repr_html_(self) -> str:
        from markupsafe import Markup

        shown = [line.shown() for line in self.lines]
        rows = [[Markup("<th>{}</th>").format(name) for name in (shown or [{}])[0]]]
        rows += [[Markup("<td>{}</td>").format(cell) for cell in row.values()] for row in shown]
        body = Markup("\n").join(Markup("<tr>{}</tr>").format(Markup("").join(row)) for row in rows)
        return str(Markup("<table><caption>{}</caption>\n{}\n</table>").format(self.title, body))


def _in_windows(table: Any, by: By, window: Any, arguments: dict[str, Any]) -> tuple[Rows, Ints]:
    """A table's rows and their order, int64 (N,). Arguments and errors as in `compare`."""
    size = whole_number("window", window, 1)
    rows, epochs = table_epochs(table, by, **arguments)
    if rows.table.rows <= size:
        raise InputError(f"window is {size:,} rows; expected fewer than the table has, {rows.table.rows:,}")
    return rows, epochs.first


def _counts(trait: TraitCodes, rows: int) -> Counts:
    """What each row takes of each value: A_ROW, which the values of a list share."""
    amounts = np.full(rows, A_ROW)
    if isinstance(trait, ManyCodes):
        return Counts.of(trait.indptr, trait.codes, trait.shared(amounts), len(trait.names))
    return Counts.of(np.arange(rows + 1), trait.codes, amounts, len(trait.names))


def _measures(trait: TraitCodes, order: Ints, window: int) -> dict[str, float]:
    """The measures of IN_PER_CENT."""
    figures = measure({"": _counts(trait, len(order))}, order, batch=window).figures
    return {TV: figures["batch_tv"][""]["mean"], SHARE_ERROR: figures["windows"]["batch"][""]["worst"]}


def _drift(columns: Mapping[str, TraitCodes], order: Ints, window: int, seed: int) -> dict[str, Drift]:
    """Drift of columns and of the mean direction of vectors, by feature."""
    from scipy.sparse import csr_matrix

    sample = order[sampled_places(len(order), window, SAMPLE)]

    def features() -> Iterator[Feature]:
        for name, trait in columns.items():
            indptr, codes, counted, values = _counts(trait, len(order))
            counts = csr_matrix((counted, codes, indptr), shape=(len(order), values))
            yield Feature(name, "mix", counts[sample])
            if isinstance(trait, VectorCodes):
                yield Feature(name + MEAN_VECTOR, "vector", trait.directions[sample])

    found = stationarity(features(), len(sample), batch=window, seed=seed)
    return {drift.feature: drift for drift in found.features}


def compare(
    table: Any,
    by: By,
    *,
    window: int,
    shuffles: int = SHUFFLES,
    tokens: Tokens = None,
    seed: int = 0,
    **arguments: Any,
) -> Comparison:
    """Measures a table's order beside the table as given and shuffles: the columns in `by`, and all other columns that
    make a trait.

    window: the rows of a window, such as a batch. Shares are of rows; windows begin at every row.
    shuffles: how many shuffles to compare with, 2 or more.
    table, by, arguments: as in `order`.

    Raises:
        InputError: an argument cannot be used, or the table is no longer than a window.

    >>> table = {"topic": ["sea"] * 300 + ["rail"] * 300, "tokens": [5] * 600}
    >>> comparison = compare(table, "topic", window=20, tokens="tokens")
    >>> [(line.measure, line.value < line.shuffled < line.given) for line in comparison.lines[:2]]
    [('TV of windows, mean', True), ('share error of any window, worst', True)]
    """
    whole_number("shuffles", shuffles, 2)
    rows, ours = _in_windows(table, by, window, {"tokens": tokens, "seed": seed, **arguments})
    given = np.arange(len(ours))
    columns = {**rows.traits, **_unseen(rows, tokens, seed)}
    random = np.random.default_rng(seed)
    shuffled = [random.permutation(ours) for _ in range(shuffles)]
    lines: list[Line] = []

    def beside(value: float, given: float, others: list[float]) -> dict[str, Any]:
        spread = float(np.std(others, ddof=1))
        return {"value": value, "given": given, "shuffled": float(np.mean(others)), "spread": spread}

    drifts, as_given = (_drift(columns, order, window, seed) for order in (ours, given))
    for name in {**columns, **drifts}:
        balanced = name.removesuffix(MEAN_VECTOR) in rows.weights or name == LENGTH
        line = partial(Line, column=name, balanced=balanced)
        if name in columns:
            of_given, of_ours, *others = (
                _measures(columns[name], order, window) for order in [given, ours, *shuffled]
            )
            for title in IN_PER_CENT:
                of_others = [measures[title] for measures in others]
                lines.append(line(measure=title, **beside(of_ours[title], of_given[title], of_others)))
        if name in drifts:
            worst = drifts[name].worst
            measured = vars(drifts[name].measures[worst]) | {"drifts": drifts[name].drifts}
            before = as_given[name].measures[worst].value
            lines.append(line(measure=f"drift, {MEASURES[worst]}", given=before, **measured))
    return Comparison(
        rows=rows.table.rows,
        window=window,
        strategy=arguments.get("strategy", "balanced"),
        shuffles=shuffles,
        lines=tuple(lines),
    )


def plot(
    table: Any,
    by: By,
    *,
    window: int,
    seed: int = 0,
    **arguments: Any,
) -> Figure:
    """Draws the shares of each column's values, window by window, along a shuffle and along the order.

    Arguments and errors are those of `compare`.

    Returns a matplotlib Figure. A notebook shows it; `figure.savefig("mix.png")` writes it.
    """
    from dagster_divorder.view.pictures import mixes_along

    rows, ours = _in_windows(table, by, window, {"seed": seed, **arguments})
    orders = {"shuffled": np.random.default_rng(seed).permutation(ours), "in order": ours}
    slices = min(SLICES, len(ours) // window)
    mixes: dict[str, dict[str, NDArray[np.float32]]] = {}
    for name, trait in rows.traits.items():
        indptr, codes, counted, values = _counts(trait, len(ours))
        entries = {title: row_entries(indptr, order)[0] for title, order in orders.items()}
        mixes[name] = {
            title: cluster_mix(counted[at], codes[at], values, slices) for title, at in entries.items()
        }
    names = {name: trait.names for name, trait in rows.traits.items()}
    return mixes_along(mixes, names, f"{len(ours):,} rows, windows of {window:,} rows")


def _unseen(rows: Rows, tokens: Tokens, seed: int) -> dict[str, TraitCodes]:
    """Traits that the order did not see: lengths if they differ, and columns outside `by`, without those that make no
    trait, or only tell rows apart."""
    import pyarrow.compute as pc

    traits: dict[str, TraitCodes] = {}
    of = partial(trait_of, bins=BINS, clusters=CLUSTERS, seed=seed)
    for name in rows.table.names:
        if name in rows.weights or name == tokens:
            continue
        with contextlib.suppress(InputError):
            # Its first rows show that a column, say of pictures, makes no trait; the rest is not read.
            of(rows.table.first(LOOKED_AT), name)
            values = rows.table.first(FIRST_ROWS).column(name)
            if not is_text(values.type) or ROWS_A_VALUE * pc.count_distinct(values).as_py() <= len(values):
                traits[name] = of(rows.table, name)
    if len(edges := quantile_edges(rows.tokens, BINS)):
        traits[LENGTH] = Codes(bin_codes(rows.tokens, edges), ("",) * (len(edges) + 1))
    return traits
